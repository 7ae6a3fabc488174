// The memory that the patched tensors of a checkpoint use: kept changes, and decoders that run or
// wait for their reader. If memory is needed, the entry that was used least recently is freed.
//
// The limit holds for any number of readers and tensors, with one exception: the decoders of one
// chain run even if they need more than the limit, but only while no other decoders run.
//
// A cursor is a set of decoders at some position in a tensor, together with the last bytes before
// that position. A reader in sequence finds its next bytes there. The requests of such a reader
// arrive slightly out of order, from several threads, so they take turns in the order of their
// offsets.
//
// Thread safety: all members may be called from any thread. Lifetime: must outlive its turns.
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
  // The minimum number of bytes before the decoders that are kept. It is more than the kernel reads
  // ahead.
  static constexpr std::size_t kWindow = 4 << 20;

  std::uint64_t at = 0;           // the position of the decoders in the tensor
  std::vector<std::byte> window;  // the bytes before `at`
  Frames frames;

  std::uint64_t begin() const { return at - window.size(); }  // the first byte that it can return
  // Appends bytes to the window. Drops the oldest bytes if the window would exceed 2 * kWindow.
  void add(std::span<const std::byte> bytes);
};

class DecoderMemory {
 public:
  // At most `most` bytes are used.
  explicit DecoderMemory(std::uint64_t most) : most_(most) {}
  DecoderMemory(const DecoderMemory&) = delete;
  DecoderMemory& operator=(const DecoderMemory&) = delete;

  // --- Changes. `tensor` is a number that the caller has chosen.

  // Returns the kept changes of a tensor, or nullptr if none are kept.
  std::shared_ptr<const Changes> changes(std::size_t tensor);
  // Reserves memory for changes that are being collected. Returns false if the limit does not allow
  // it. Pass the reserved bytes to keep() or release() later.
  bool reserve(std::uint64_t bytes);
  // Gives reserved memory back.
  void release(std::uint64_t bytes);
  // Keeps the changes of a tensor in the memory that was reserved for them.
  void keep(std::size_t tensor, std::shared_ptr<const Changes> changes, std::uint64_t reserved);

  // --- Decoders

  using Open = std::function<Frames()>;
  class Turn;

  std::uint64_t most() const { return most_; }
  // Returns the maximum memory that was in use so far, in bytes.
  std::uint64_t most_used() const;

 private:
  friend class Turn;
  struct Kept {
    std::size_t tensor;
    std::shared_ptr<const Changes> changes;  // either changes
    std::unique_ptr<Cursor> cursor;          // or a cursor is set
    std::uint64_t memory;                    // bytes
  };

  using Busy = std::list<std::pair<std::size_t, std::uint64_t>>;

  // Removes kept entries, the least recently used first, until `bytes` more bytes fit, or until no
  // entries are left. Appends the removed entries to `gone`.
  void make_room(std::uint64_t bytes, std::vector<Kept>& gone);
  void add(std::uint64_t bytes);

  const std::uint64_t most_;
  // Held from the opening of decoders until there is room for them.
  std::mutex opening_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::list<Kept> kept_;  // the most recently used first
  // Positions in kept_, by tensor.
  std::unordered_map<std::size_t, std::list<Kept>::iterator> changes_;
  Busy busy_;  // the tensors of running cursors, with their begin()
  // The tensors and offsets of waiting readers.
  std::multiset<std::pair<std::size_t, std::uint64_t>> waiting_;
  std::uint64_t memory_ = 0;  // bytes in use
  std::uint64_t idle_ = 0;    // bytes held by kept_
  std::uint64_t most_used_ = 0;
  std::size_t running_ = 0;  // the number of turns with running decoders
};

// Runs decoders while it exists. The constructors wait for room. They throw std::bad_alloc.
class DecoderMemory::Turn {
 public:
  // Opens new decoders at the beginning of a tensor. They are freed afterwards.
  Turn(DecoderMemory& room, const Open& open);
  // Takes decoders of `tensor` that can return the bytes from `offset` without starting again, or
  // else opens new ones. Afterwards they wait for the next reader, unless drop() was called.
  Turn(DecoderMemory& room, std::size_t tensor, std::uint64_t offset, const Open& open);
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();

  Cursor& cursor() { return *cursor_; }
  void drop() { is_dropped_ = true; }

 private:
  explicit Turn(DecoderMemory& room) : room_(room), cursor_(std::make_unique<Cursor>()) {}
  void start(const Open& open, std::uint64_t more);
  bool take_idle(std::uint64_t offset);
  bool take(std::uint64_t offset);

  DecoderMemory& room_;
  std::unique_ptr<Cursor> cursor_;
  std::size_t tensor_ = 0;
  std::optional<Busy::iterator> busy_;
  std::uint64_t memory_ = 0;
  bool runs_ = false;
  bool is_dropped_ = false;
};

}  // namespace stfs
