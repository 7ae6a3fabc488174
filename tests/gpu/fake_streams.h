// Captures of graphs, as other calls of the fake driver meet them.
#pragma once

#include "tests/gpu/fake_machine.h"

namespace stfs::gpu::test::fake {

// Whether a call that is unsafe during a capture meets one; the capture is lost then. A thread in
// relaxed mode meets none.
bool disturbs_capture(Machine& m);

}  // namespace stfs::gpu::test::fake
