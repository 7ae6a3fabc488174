// A tensor with the changes of deltas, computed when it is read.
//
//   unchecked ──read──> checking ──checksum matches──> checked, with kept changes or without
//                          └──────mismatch───────────> broken: the whole checkpoint is ESTALE
//
// The first read of a tensor processes all of it once: it applies the frames to the bytes of the
// base, computes the checksum, and keeps the differences from the base (Changes) if there is room
// for them (decoder_memory.h). Later reads, in any order, only apply the kept changes. A read of a
// tensor without kept changes decodes the frames from their beginning. A reader in sequence
// continues with its decoders where its last read ended.
//
// Which tensors are checked is stored in memory that later forked processes share, so that a worker
// that takes over checks no tensor again.
//
// Thread safety: const members may be called from any thread. Lifetime: Patches must outlive the
// producers of its tensors, and the sources must outlive both.
#pragma once

#include "core/layer/delta/decoder_memory.h"
#include "core/layer/delta/frame.h"
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

// The links that change a tensor, and the checksum of the result.
struct Patch {
  struct Link {
    DeltaEncoding encoding;
    Extent frame;
  };
  std::vector<Link> links;  // from the oldest to the newest
  DeltaChecksum checksum;
  std::string digest;  // the checksum of the new bytes, in lower-case hexadecimal digits
};

// The state that the patched tensors of a checkpoint share: their memory, the results of their
// checks, and whether the version is broken.
class Patches {
 public:
  // At most `most` bytes of changes and decoders are kept, for `count` tensors. `sources` are all
  // sources of the checkpoint. If a checksum does not match, all of them are marked as changed, so
  // that nothing of the version is shown any more. Throws Error kUnreadable if the system has no
  // memory to share.
  Patches(std::uint64_t most, std::size_t count, std::vector<const Source*> sources);
  Patches(const Patches&) = delete;
  Patches& operator=(const Patches&) = delete;
  ~Patches();

  class Tensor;

  // The bytes of tensors that were decoded so far, and the maximum memory that was in use so far,
  // in bytes.
  std::uint64_t decoded() const { return decoded_; }
  std::uint64_t most_used() const { return room_.most_used(); }

 private:
  friend class Tensor;
  class Collected;
  void break_all(const Tensor& tensor, int error) const;

  mutable DecoderMemory room_;
  std::vector<const Source*> sources_;
  std::span<std::atomic<bool>> is_checked_;  // one per tensor; shared with forked processes
  mutable std::atomic<std::uint64_t> decoded_ = 0;
};

// One of the patched tensors.
class Patches::Tensor {
 public:
  // `number` is less than the `count` of `all`, and no other tensor has it.
  Tensor(const Patches& all, std::size_t number, const stfs::Tensor& base, Patch patch)
      : all_(all), number_(number), base_(base), patch_(std::move(patch)) {}

  const stfs::Tensor& base() const { return base_; }
  const Patch& patch() const { return patch_; }
  std::unique_ptr<const Producer> producer() const;
  bool is_checked() const { return all_.is_checked_[number_]; }
  bool has_changes() const;       // returns whether its changes are kept in memory
  std::uint64_t streams() const;  // the number of streams that are decoded at the same time
  std::uint64_t window() const;   // the maximum window of each stream, in bytes

 private:
  friend class PatchedBytes;
  enum class State : std::uint8_t { kUnchecked, kChecking, kChecked, kBroken };

  // Checks the tensor if it is not checked yet. Returns 0 if it is checked, else an errno.
  int check() const;
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
  mutable std::mutex mutex_;  // guards state_
  mutable std::condition_variable checked_;
  // In this process; other processes see only is_checked_.
  mutable State state_ = State::kUnchecked;
};

}  // namespace stfs
