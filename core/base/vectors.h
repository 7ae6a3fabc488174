// Code that Highway compiles once for each set of instructions.
//
// A file that has such code includes itself: HWY_TARGET_INCLUDE is its path, and
// <hwy/foreach_target.h> comes next. Highway then chooses a set when the program runs.
//
// Thread safety: none, for tests alone.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace stfs {

// Calls `use` with each set that the processor has and a file was compiled for. It is the one that
// Highway chooses in the meantime. `generated` is HWY_TARGETS of that file.
template <class Use>
void with_each_target(std::int64_t generated, const Use& use) {
  const auto choose = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (std::int64_t left = hwy::SupportedTargets() & generated; left != 0; left &= left - 1) {
    choose(left & -left);
    use(left & -left);
  }
  choose(0);
}

}  // namespace stfs
