// A tensor with the changes of deltas, computed when it is read.
//
//   unchecked ──read──> checking ──checksum holds──> checked, with its changes or without
//                          └──────mismatch──────────> broken: all of the checkpoint is ESTALE
//
// The first read of a tensor goes through all of it once: it applies the frames to the base's
// bytes, takes the checksum, and keeps what differs from the base (Changes) where there is room
// (room.h). Later reads, in any order, apply kept changes alone. A read of a tensor without kept
// changes decodes from the beginning of the frames, and a reader in sequence goes on where it
// stands.
//
// That a tensor is checked stands in memory that processes share which are forked later: a worker
// that takes over checks nothing again.
//
// Thread safety: const members may be called from any thread. Lifetime: Patches outlives its
// tensors' producers; sources outlive both.
#pragma once

#include "core/layer/delta/frame.h"
#include "core/layer/delta/room.h"
#include "core/layer/delta/version.h"
#include "core/recipe/content.h"
#include "core/stored/tensor.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs {

// The links that name a tensor, and what its bytes must be.
struct Patch {
  struct Link {
    DeltaEncoding encoding;
    Extent frame;
  };
  std::vector<Link> links;  // from the oldest to the newest
  DeltaChecksum checksum;
  std::string digest;  // of the new bytes
};

// The patched tensors of a checkpoint share this: room, outcomes, and the end of the version.
class Patches {
 public:
  // `most` bytes of changes and decoders are kept, of `count` tensors. `sources` are those of the
  // checkpoint: once a checksum does not hold, each has changed, so that nothing of the version is
  // shown. Throws Error kUnreadable without memory to share.
  Patches(std::uint64_t most, std::size_t count, std::vector<const Source*> sources);
  Patches(const Patches&) = delete;
  Patches& operator=(const Patches&) = delete;
  ~Patches();

  class Tensor;

  // Bytes of tensors that decoders went through, and the most memory in use, so far.
  std::uint64_t decoded() const { return decoded_; }
  std::uint64_t most_used() const { return room_.most_used(); }

 private:
  friend class Tensor;
  class Collected;
  void break_all(const Tensor& tensor, int error) const;

  mutable Room room_;
  std::vector<const Source*> sources_;
  std::span<std::atomic<bool>> is_checked_;  // of each tensor; shared
  mutable std::atomic<std::uint64_t> decoded_ = 0;
};

// One tensor of them.
class Patches::Tensor {
 public:
  // `number` is less than the count of `all`, and no other tensor's.
  Tensor(const Patches& all, std::size_t number, const stfs::Tensor& base, Patch patch)
      : all_(all), number_(number), base_(base), patch_(std::move(patch)) {}

  const stfs::Tensor& base() const { return base_; }
  const Patch& patch() const { return patch_; }
  std::unique_ptr<const Producer> producer() const;
  bool is_checked() const { return all_.is_checked_[number_]; }
  bool has_changes() const;       // kept in memory
  std::uint64_t streams() const;  // that are decoded at a time
  std::uint64_t window() const;   // that each of them may have, bytes

 private:
  friend class PatchedBytes;
  enum class State : std::uint8_t { kUnchecked, kChecking, kChecked, kBroken };

  int check() const;  // 0 or an errno, once it is checked
  int check_now() const;
  class Pieces;
  int fill(const Content& base, std::uint64_t offset, std::span<std::byte> out) const;
  int decode(const Content& base, std::uint64_t offset, std::span<std::byte> out) const;
  int reach(const Content& base, Cursor& cursor, std::uint64_t offset) const;
  int advance(const Content& base, Cursor& cursor, std::span<std::byte> out) const;
  Frames open_frames() const;

  const Patches& all_;
  std::size_t number_;
  stfs::Tensor base_;
  Patch patch_;
  mutable std::mutex mutex_;  // of state_
  mutable std::condition_variable checked_;
  mutable State state_ = State::kUnchecked;  // in this process
};

}  // namespace stfs
