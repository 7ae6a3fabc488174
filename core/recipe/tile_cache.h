// Keeps tiles: parts of transposed or reordered results that several readers may need.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/semaphore.h"

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

// Keeps the most recently used tiles, up to kMost bytes. In addition, the tiles that are being
// computed, at most kAtOnce, and a few spare buffers take memory.
class TileCache {
 public:
  static constexpr std::size_t kMost = std::size_t{64} << 20;

  struct Key {
    std::uint64_t tensor, row, column;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
  };
  // Reuses the buffers of evicted tiles, because new memory would cost as much time as computing
  // the tile.
  class Buffers {
   public:
    Buffers() { spare_.reserve(kMaxSpare); }
    struct Free {
      void operator()(std::byte* bytes) const;
    };
    using Buffer = std::unique_ptr<std::byte[], Free>;
    Buffer take(std::size_t size);  // its content is arbitrary; aligned to kAlignment
    void give(std::size_t size, Buffer buffer);

   private:
    static constexpr std::size_t kMaxSpare = 4;
    std::mutex mutex_;
    std::vector<std::pair<std::size_t, Buffer>> spare_;  // with their sizes, the newest last
  };
  static constexpr std::size_t kAlignment = 64;  // bytes of a line in the processor's caches

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
  // Returns the tile, or a new one with a buffer of `bytes` bytes. The caller locks Tile::mutex. If
  // Tile::is_ready is false then, it computes the tile and sets is_ready. Throws std::bad_alloc.
  std::shared_ptr<Tile> get(const Key& key, std::size_t bytes);
  // Returns true if the tile is ready or another thread is computing it.
  bool has(const Key& key) const;

  // The right to compute a tile, which at most kAtOnce threads have at a time. The constructor
  // waits for it. A thread that has a Turn must not wait for another tile.
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
  std::list<Kept> kept_;  // the most recently used first
  std::map<Key, std::list<Kept>::iterator> by_key_;
  std::size_t bytes_ = 0;  // bytes of all tiles in kept_
  Semaphore turns_{kAtOnce};
};

}  // namespace stfs
