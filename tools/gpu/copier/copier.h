// The copier: a child process of the holder that copies tensors to one device. It owns the CUDA
// context and the pinned memory, and exits when it is idle, to free both. If the driver kills it,
// the holder and the resident tensors survive.
//
//     starting ──1──> loading ──2──> idle ──1──> loading
//        │               │            ├──3──> ended
//        │               ├─────5──────┼─────> ended
//        └───────4───────┴─────4──────┴──4──> ended
//
//   starting  The copier has sent its hello and waits for the first order, without a time limit.
//   1  The holder sends an order. A worker thread opens the device if it is not open yet and runs
//      transfer(); the main thread reports progress and reads the holder's messages.
//   2  transfer() returns or throws in the worker. The copier then sends the segments or the error.
//      The holder's "stop" makes transfer() throw.
//   3  The copier has received no order for `idle`.
//   4  The holder closes the socket. The copier first stops transfer() and joins the worker.
//   5  The driver fails in the worker, for another reason than a lack of memory, so later calls of
//      this process may fail as well. The copier sends the error and exits; the holder starts a new
//      copier for the next order.
#pragma once

#include "core/base/posix.h"

#include <chrono>
#include <string>

namespace stfs::gpu {

// The descriptor number of the socket that a holder passes to a copier.
inline constexpr int kCopierSocket = 3;

// Serves the holder at the other end of `socket` until the state is "ended". `device` is a name for
// find_device(). Returns the exit status. Throws Error kDeviceFailed if poll(2), eventfd(2) or a
// send fails, and kUsage for a malformed order.
int run_copier(UniqueFd socket, const std::string& device, std::chrono::seconds idle);

}  // namespace stfs::gpu
