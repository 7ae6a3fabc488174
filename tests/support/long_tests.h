// Tests that take too long for CI. With STFS_LONG=1 in the environment they run completely,
// otherwise in a smaller form.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace stfs::test {

inline bool long_tests() {
  const char* value = std::getenv("STFS_LONG");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns a number of rounds: `whole` with STFS_LONG=1, otherwise `few`. With sanitizers, which
// make a round several times as long, returns a third of `few`.
inline std::uint64_t long_or(std::uint64_t whole, std::uint64_t few) {
#ifdef STFS_SANITIZED
  few = (few + 2) / 3;
#endif
  return long_tests() ? whole : few;
}

}  // namespace stfs::test
