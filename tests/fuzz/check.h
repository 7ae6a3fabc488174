// The assertion of the fuzz targets. <cassert> is not used, because the assertion must work in
// every build type.
#pragma once

namespace stfs::fuzz {

// Ends the run if `condition` is false, so that libFuzzer keeps the input.
inline void check(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace stfs::fuzz
