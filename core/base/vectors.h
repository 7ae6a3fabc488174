// Code that Highway compiles once for each set of instructions. Highway then chooses a set when the
// program runs.
//
// A file that has such code includes this file, and itself: HWY_TARGET_INCLUDE is its path, and
// <hwy/foreach_target.h> comes next.
#pragma once

#include <functional>

// AVX3_DL and SSSE3 gain nothing here. Arrays of vectors, which statistics need, cannot hold
// vectors without a constant size.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

namespace stfs {

// For tests and measurements: calls `use` with the name ("AVX2") of each set that the processor has
// and that files are compiled for. It is the one that Highway chooses meanwhile. Not thread-safe.
void with_each_target(const std::function<void(const char* name)>& use);

}  // namespace stfs
