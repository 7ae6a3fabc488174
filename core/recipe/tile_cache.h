// The tiles of transposed results.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/turns.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace stfs {

// The tiles of transposed results that were read last, at most kMost bytes of them, those that
// are computed, at most kAtOnce, and a few buffers for the next.
class TileCache {
 public:
  static constexpr std::size_t kMost = std::size_t{64} << 20;

  struct Key {
    std::uint64_t tensor, row, column;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
  };
  // Buffers of tiles that are gone: new memory would cost as much as a tile's values.
  class Buffers {
   public:
    Buffers() { spare_.reserve(kMostSpare); }
    struct Free {
      void operator()(std::byte* bytes) const;
    };
    using Buffer = std::unique_ptr<std::byte[], Free>;
    Buffer take(std::size_t size);  // of any bytes, at a multiple of kAlignment
    void give(std::size_t size, Buffer buffer);

   private:
    static constexpr std::size_t kMostSpare = 4;
    std::mutex mutex_;
    std::vector<std::pair<std::size_t, Buffer>> spare_;  // the last given at the end
  };
  static constexpr std::size_t kAlignment = 64;  // a line of the processor's caches

  struct Tile {
    Tile(Buffers& from, std::size_t bytes) : buffers(from), size(bytes), buffer(from.take(bytes)) {}
    Tile(const Tile&) = delete;
    Tile& operator=(const Tile&) = delete;
    ~Tile() { buffers.give(size, std::move(buffer)); }

    std::mutex mutex;  // held while the tile is computed
    bool is_ready = false;
    Buffers& buffers;
    std::size_t size;
    Buffers::Buffer buffer;
  };
  // The tile, which may not be ready: whoever holds its mutex computes it then.
  std::shared_ptr<Tile> get(const Key& key, std::size_t bytes);
  bool has(const Key& key) const;

  // A turn to compute a tile, for kAtOnce threads at a time; the constructor waits for one. A
  // thread that has a turn never waits for a tile.
  static constexpr std::ptrdiff_t kAtOnce = 8;
  class Turn {
   public:
    explicit Turn(TileCache& cache) : cache_(cache) { cache.turns_.acquire(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { cache_.turns_.release(); }

   private:
    TileCache& cache_;
  };

 private:
  struct Kept {
    Key key;
    std::shared_ptr<Tile> tile;
  };
  Buffers buffers_;  // outlives the tiles
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // the last used first
  std::map<Key, std::list<Kept>::iterator> by_key_;
  std::size_t bytes_ = 0;
  Turns turns_{kAtOnce};
};

}  // namespace stfs
