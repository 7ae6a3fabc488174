// For code that Highway compiles once for each set of instructions. Highway chooses the set when
// the program runs.
//
// A file with such code includes this file. It also includes itself through <hwy/foreach_target.h>,
// after it has defined HWY_TARGET_INCLUDE as its own path.
#pragma once

#include <functional>

// AVX3_DL and SSSE3 make no loop of stfs faster. The others (SVE, RVV) have vectors without a
// constant size, of which there can be no arrays, and statistics need arrays of vectors.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

namespace stfs {

// For tests and measurements: calls `use` once for each set of instructions that the processor has
// and that files are compiled for, with its name ("AVX2"). During the call Highway chooses this
// set. Not thread-safe.
void with_each_target(const std::function<void(const char* name)>& use);

}  // namespace stfs
