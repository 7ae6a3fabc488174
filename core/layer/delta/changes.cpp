#include "core/layer/delta/changes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace stfs {

void Changes::add(std::uint64_t at, std::span<const std::byte> difference,
                  std::span<const std::byte> after) {
  const auto change = [&](std::size_t i) {
    at_.push_back(static_cast<std::uint16_t>((at + i) % kBlock));
    to_.push_back(after[i]);
  };
  for (std::size_t i = 0; i < difference.size();) {
    const auto in_block = static_cast<std::size_t>((at + i) % kBlock);
    if (in_block == 0) first_.push_back(at_.size());
    const std::size_t end = std::min(difference.size(), i + (kBlock - in_block));
    // Nearly all bytes are 0, so four words are tested at once.
    std::array<std::uint64_t, 4> words{};
    for (; end - i >= sizeof words; i += sizeof words) {
      std::memcpy(words.data(), &difference[i], sizeof words);
      if ((words[0] | words[1] | words[2] | words[3]) == 0) continue;
      for (std::size_t word = 0; word < words.size(); ++word) {
        for (std::uint64_t left = words[word]; left != 0;) {
          const auto byte = static_cast<std::size_t>(std::countr_zero(left) / 8);
          change(i + sizeof left * word + byte);
          left &= ~(std::uint64_t{0xff} << (8 * byte));
        }
      }
    }
    for (; i < end; ++i) {
      if (difference[i] != std::byte{}) change(i);
    }
  }
}

void Changes::apply(std::uint64_t at, std::span<std::byte> bytes) const {
  const std::uint64_t end = at + bytes.size();
  for (std::uint64_t block = at / kBlock; block * kBlock < end; ++block) {
    const auto first = at_.begin() + static_cast<std::ptrdiff_t>(first_[block]);
    const auto last = block + 1 < first_.size()
                          ? at_.begin() + static_cast<std::ptrdiff_t>(first_[block + 1])
                          : at_.end();
    const std::uint64_t begin = block * kBlock;
    const auto least = static_cast<std::uint16_t>(at > begin ? at - begin : 0);
    for (auto change = std::lower_bound(first, last, least); change != last; ++change) {
      const std::uint64_t position = begin + *change;
      if (position >= end) break;
      bytes[position - at] = to_[static_cast<std::size_t>(change - at_.begin())];
    }
  }
}

std::size_t Changes::memory() const {
  return first_.capacity() * sizeof(std::uint64_t) + at_.capacity() * sizeof(std::uint16_t) +
         to_.capacity();
}

}  // namespace stfs
