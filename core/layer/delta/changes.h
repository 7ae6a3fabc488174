// The changes that the deltas of a chain make to one tensor: positions and new bytes, sorted by
// position. Each change takes three bytes, because positions are stored in 16 bits relative to
// blocks of 64 KiB.
//
// Thread safety: const members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stfs {

class Changes {
 public:
  static constexpr std::uint64_t kBlock = 1 << 16;

  // Adds the changes of a range that begins at byte `at`, which must be where the last call's range
  // ended. `difference` is the xor of the old and the new bytes, and `after` holds the new bytes.
  // Bytes with the difference 0 take no memory.
  void add(std::uint64_t at, std::span<const std::byte> difference,
           std::span<const std::byte> after);
  // Applies the changes of the range that begins at byte `at` to `bytes`, which holds the old
  // bytes.
  void apply(std::uint64_t at, std::span<std::byte> bytes) const;
  std::size_t memory() const;  // bytes

 private:
  std::vector<std::uint64_t> first_;  // for each block, the index of its first change in at_
  std::vector<std::uint16_t> at_;     // positions within the blocks
  std::vector<std::byte> to_;         // new bytes
};

}  // namespace stfs
