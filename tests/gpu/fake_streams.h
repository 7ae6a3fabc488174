// How captures of graphs affect other calls of the fake driver.
#pragma once

#include "tests/gpu/fake_machine.h"

namespace stfs::gpu::test::fake {

// Returns true if a call that is unsafe during a capture happens during one, and invalidates that
// capture. Returns false in a thread in relaxed mode.
bool disturbs_capture(Machine& m);

}  // namespace stfs::gpu::test::fake
