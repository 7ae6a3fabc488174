// The changes that the deltas of a chain make to one tensor: positions and new bytes, sorted, three
// bytes each. Positions are 16 bits within blocks.
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

  // Adds the bytes `after`, which are those from `at` on, where `difference` is not 0: the xor with
  // what they were before. `at` is where the last call ended.
  void add(std::uint64_t at, std::span<const std::byte> difference,
           std::span<const std::byte> after);
  // Applies the changes of the range that begins at `at` to `bytes`.
  void apply(std::uint64_t at, std::span<std::byte> bytes) const;
  std::size_t memory() const;  // bytes

 private:
  std::vector<std::uint64_t> first_;  // of each block, and of those behind it: the first change
  std::vector<std::uint16_t> at_;
  std::vector<std::byte> to_;
};

}  // namespace stfs
