// The copier: the process that touches a device on behalf of the holder. It owns the context and
// the pinned memory, and goes when it has had nothing to do for a while, so that neither is held
// for long; if the driver kills it, the holder and what it keeps stay.
#pragma once

#include "core/base/posix.h"

#include <chrono>
#include <string>

namespace stfs::gpu {

// Serves the holder at the other end of `socket` until that goes, or for `idle` without an order.
// Returns the exit status.
int run_copier(UniqueFd socket, const std::string& device, std::chrono::seconds idle);

}  // namespace stfs::gpu
