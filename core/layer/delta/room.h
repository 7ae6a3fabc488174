// The memory that the patched tensors of a checkpoint take: changes that are kept, and decoders,
// which run or wait for their reader. What was used least recently gives way to what is needed.
//
// The bound holds for any number of readers and tensors, but for the decoders of one chain: these
// run even where there is no room for them, while no others do.
//
// A cursor is decoders that stand somewhere in a tensor, and the last bytes before them. A reader
// in sequence finds there what it reads next. The requests of such a reader come a little out of
// order, from several threads: they take turns by their offsets.
//
// Thread safety: all members may be called from any thread. Lifetime: outlives its turns.
#pragma once

#include "core/layer/delta/changes.h"
#include "core/layer/delta/frame.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stfs {

using Frames = std::vector<std::unique_ptr<Frame>>;

struct Cursor {
  // Bytes before the decoders that are kept: more than the kernel reads ahead.
  static constexpr std::size_t kWindow = 4 << 20;

  std::uint64_t at = 0;           // in the tensor
  std::vector<std::byte> window;  // the bytes before `at`
  Frames frames;

  std::uint64_t begin() const { return at - window.size(); }  // of what it can give
  void add(std::span<const std::byte> bytes);  // to the window, which may drop others
};

class Room {
 public:
  explicit Room(std::uint64_t most) : most_(most) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  // --- changes. `tensor` is a number of the caller's.

  std::shared_ptr<const Changes> changes(std::size_t tensor);
  // Takes room for changes that are collected; false: there is none. Give it to keep() or
  // release().
  bool reserve(std::uint64_t bytes);
  void release(std::uint64_t bytes);
  void keep(std::size_t tensor, std::shared_ptr<const Changes> changes, std::uint64_t reserved);

  // --- decoders

  using Open = std::function<Frames()>;
  class Turn;

  std::uint64_t most() const { return most_; }
  std::uint64_t most_used() const;  // bytes, so far

 private:
  friend class Turn;
  struct Kept {
    std::size_t tensor;
    std::shared_ptr<const Changes> changes;  // or
    std::unique_ptr<Cursor> cursor;
    std::uint64_t memory;
  };

  using Busy = std::list<std::pair<std::size_t, std::uint64_t>>;

  void make_room(std::uint64_t bytes, std::vector<Kept>& gone);
  void add(std::uint64_t bytes);

  const std::uint64_t most_;
  std::mutex opening_;        // held while decoders are opened, until there is room for them
  mutable std::mutex mutex_;  // of the rest
  std::condition_variable changed_;
  std::list<Kept> kept_;                                                // used last, first
  std::unordered_map<std::size_t, std::list<Kept>::iterator> changes_;  // in kept_, by tensor
  Busy busy_;  // tensors and begin() of their cursors
  std::multiset<std::pair<std::size_t, std::uint64_t>> waiting_;  // tensors and offsets
  std::uint64_t memory_ = 0;                                      // of all
  std::uint64_t idle_ = 0;                                        // of kept_
  std::uint64_t most_used_ = 0;
  std::size_t running_ = 0;  // turns
};

// Decoders that run while it lives. The constructors wait for room, and throw std::bad_alloc.
class Room::Turn {
 public:
  // New ones, at the beginning of a tensor, which go afterwards.
  Turn(Room& room, const Open& open);
  // Those that can give the bytes from `offset` on without beginning anew, or else new ones. They
  // wait for the next reader afterwards, unless they are told to go.
  Turn(Room& room, std::size_t tensor, std::uint64_t offset, const Open& open);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();

  Cursor& cursor() { return *cursor_; }
  void drop() { is_dropped_ = true; }

 private:
  explicit Turn(Room& room) : room_(room), cursor_(std::make_unique<Cursor>()) {}
  void start(const Open& open, std::uint64_t more);
  bool take_idle(std::uint64_t offset);
  bool take(std::uint64_t offset);

  Room& room_;
  std::unique_ptr<Cursor> cursor_;
  std::size_t tensor_ = 0;
  std::optional<Busy::iterator> busy_;
  std::uint64_t memory_ = 0;
  bool runs_ = false;
  bool is_dropped_ = false;
};

}  // namespace stfs
