// The copier: a child process of the holder that copies tensors to one device. It owns the CUDA
// context and the pinned memory, and exits when idle to free both. If the driver kills it, the
// holder and the resident tensors survive.
//
//     starting ──1──> loading ──2──> idle ──1──> loading
//        │               │            ├──3──> ended
//        │               ├─────5──────┼─────> ended
//        └───────4───────┴─────4──────┴──4──> ended
//
//   starting  has sent its hello and waits for the first order, without a time limit
//   1  the holder, with an order: a worker thread opens the device if it is not open and runs
//      transfer(); the main thread reports progress and reads the holder's messages
//   2  the worker, when transfer() returns or throws; the copier then sends the segments or the
//      error. The holder's "stop" makes transfer() throw.
//   3  the copier, after `idle` without an order
//   4  the holder, by closing the socket. The copier stops transfer() and joins the worker first.
//   5  the worker, when the driver has failed, and not for lack of memory: later calls of this
//      process may fail too. The copier sends the error and leaves; the next order gets a new one.
#pragma once

#include "core/base/posix.h"

#include <chrono>
#include <string>

namespace stfs::gpu {

// The number of the socket's descriptor with which a holder starts a copier.
inline constexpr int kCopierSocket = 3;

// Serves the holder at the other end of `socket` until state "ended". `device` is for
// find_device(). Returns the exit status. Throws Error kDeviceFailed when poll(2), eventfd(2)
// or a send fails, kUsage for a malformed order.
int run_copier(UniqueFd socket, const std::string& device, std::chrono::seconds idle);

}  // namespace stfs::gpu
