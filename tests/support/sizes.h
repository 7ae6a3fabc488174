// Sizes in bytes that tests share.
#pragma once

#include <cstdint>

namespace stfs::test {

inline constexpr std::uint64_t kKiB = 1 << 10;
inline constexpr std::uint64_t kMiB = 1 << 20;
inline constexpr std::uint64_t kGiB = 1 << 30;

}  // namespace stfs::test
