// A tensor with the changes of deltas, computed when it is read.
//
//   unchecked ──read──> checking ──checksum holds──> checked, with its changes or without
//                          └──────mismatch──────────> broken: all of the checkpoint is ESTALE
//
// The first read of a tensor goes through all of it once: it applies the frames to the base's bytes,
// takes the checksum, and keeps what differs from the base (Changes) while all that is kept, and
// collected by other readers, fits into the bytes that the user gave. Later reads, in any order,
// apply kept changes alone. A read of a tensor without kept changes decodes from the beginning of
// the frames, and a reader in sequence goes on where the last read ended.
//
// Thread safety: const members may be called from any thread. Lifetime: Patches outlives its
// tensors' producers; sources outlive both.
#pragma once

#include "core/layer/delta/frame.h"
#include "core/layer/delta/version.h"
#include "core/recipe/content.h"
#include "core/stored/tensor.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stfs {

// Positions and new bytes, sorted, three bytes each: positions are 16 bits within blocks.
class Changes {
 public:
  static constexpr std::uint64_t kBlock = 1 << 16;

  // Adds where `after` differs from `before`, which are the bytes from `at` on. `at` is where the
  // last call ended.
  void add(std::uint64_t at, std::span<const std::byte> before, std::span<const std::byte> after);
  // Applies the changes of the range that begins at `at` to `bytes`.
  void apply(std::uint64_t at, std::span<std::byte> bytes) const;
  std::size_t memory() const;  // bytes

 private:
  std::vector<std::uint64_t> first_;  // of each block, and of those behind it: the first change
  std::vector<std::uint16_t> at_;
  std::vector<std::byte> to_;
};

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

// The patched tensors of a checkpoint share this: the room for changes, and the end of the version.
class Patches {
 public:
  // `most` bytes of changes are kept. `sources` are those of the checkpoint: once a checksum does not
  // hold, each has changed, so that nothing of the version is shown.
  Patches(std::uint64_t most, std::vector<const Source*> sources)
      : most_(most), sources_(std::move(sources)) {}

  class Tensor;

 private:
  friend class Tensor;
  class Collected;
  void break_all() const;
  // Takes room for changes that a reader collects; changes that were used least recently give way.
  // False: there is no room. The reader gives the room to keep() or to release().
  bool reserve(std::uint64_t bytes) const;
  void release(std::uint64_t bytes) const;
  // Keeps changes in the room of `reserved` bytes, which they had.
  void keep(const Tensor& tensor, std::shared_ptr<const Changes> changes,
            std::uint64_t reserved) const;
  std::shared_ptr<const Changes> kept(const Tensor& tensor) const;

  std::uint64_t most_;
  std::vector<const Source*> sources_;
  struct Kept {
    const Tensor* tensor;
    std::shared_ptr<const Changes> changes;
    std::uint64_t memory;
  };
  mutable std::mutex mutex_;      // of the rest
  mutable std::list<Kept> kept_;  // used last, first
  mutable std::unordered_map<const Tensor*, std::list<Kept>::iterator> by_tensor_;
  mutable std::uint64_t memory_ = 0;  // of what is kept, and of what is being collected
};

// One tensor of them.
class Patches::Tensor {
 public:
  Tensor(const Patches& all, const stfs::Tensor& base, Patch patch)
      : all_(all), base_(base), patch_(std::move(patch)) {}

  const stfs::Tensor& base() const { return base_; }
  const Patch& patch() const { return patch_; }
  std::unique_ptr<const Producer> producer() const;
  bool is_checked() const;
  bool has_changes() const;  // kept in memory

 private:
  friend class Patches;
  friend class PatchedBytes;
  enum class State : std::uint8_t { kUnchecked, kChecking, kChecked, kBroken };
  // A decoder that stands somewhere in the tensor.
  struct Cursor {
    std::uint64_t at = 0;
    std::vector<std::unique_ptr<Frame>> frames;
  };

  int check() const;    // 0 or an errno, once it is checked
  int check_now() const;
  int fill(std::uint64_t offset, std::span<std::byte> out) const;
  int decode(const Content& base, std::uint64_t offset, std::span<std::byte> out) const;
  std::vector<std::unique_ptr<Frame>> open_frames() const;

  const Patches& all_;
  stfs::Tensor base_;
  Patch patch_;
  mutable std::mutex mutex_;  // of state_
  mutable std::condition_variable checked_;
  mutable State state_ = State::kUnchecked;
  mutable std::mutex cursor_mutex_;  // held while it decodes
  mutable Cursor cursor_;
};

}  // namespace stfs
