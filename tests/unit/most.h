#pragma once

#include <cstdint>
#include <limits>

namespace stfs::test {

// The largest offset or length of a read.
inline constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

}  // namespace stfs::test
