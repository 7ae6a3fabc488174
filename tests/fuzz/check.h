// The assertion of the fuzz targets. Not <cassert>: it must work in every build type.
#pragma once

namespace stfs::fuzz {

// Ends the run, so that libFuzzer keeps the input, unless `condition` holds.
inline void check(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace stfs::fuzz
