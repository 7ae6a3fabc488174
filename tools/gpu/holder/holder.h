// The holder: a process that keeps loaded tensors, as descriptors of device memory. It has no CUDA
// context: one copier per device does the copying. If the driver kills a copier, no tensor is lost.
//
//   client ─┐                      ┌─ copier of cuda:0
//   client ─┼─ UNIX socket ─ holder┤
//   client ─┘                      └─ copier of cpu
//
// One thread runs one poll(2) loop; residency.h makes the decisions. Nothing in it waits: a copier
// that leaves is polled until its process has ended, since a driver takes long to tear a context
// down, and another thread closes descriptors of device memory (closer.h).
//
// A holder that clients cannot find, since its socket's file has gone, would hold memory for ever.
// It looks for the file in each turn of the loop and at least each minute, makes the socket again,
// and where it cannot it ends when no process has a lease.
//
//   running ──1──> leaving ──2──> reaped      (a copier)
//
//   1  its socket ends, or it is of another version: the holder closes its own end. A copier that
//      was told to stop a load and has not answered after kCopierEnd is killed
//   2  its process ends, if need be by SIGKILL after kCopierEnd. Its load fails or is ordered
//      again then; a copier that left without an order is not waited for by the next load
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace stfs::gpu {

struct HolderOptions {
  std::string socket_path;         // unused with a socket from systemd (sd_listen_fds(3))
  std::string program;             // path of stfs-gpu, to start copiers
  std::uint64_t memory_limit = 0;  // bytes per device; 0: none
  bool background = false;         // listen, return 0, and serve as a daemon
  std::optional<std::chrono::seconds> exit_idle;  // exit after so long without tensors
  std::chrono::seconds copier_idle{10};
};

// Runs until SIGTERM or SIGINT and returns the exit status. Returns 0 at once when another holder
// listens at the path. Throws Error kDeviceFailed.
int run_holder(const HolderOptions& options);

}  // namespace stfs::gpu
