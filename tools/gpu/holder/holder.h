// The holder: a process that keeps loaded tensors, as descriptors of device memory. It has no CUDA
// context: one copier per device does the copying. If the driver kills a copier, no tensor is lost.
//
//   client ─┐                      ┌─ copier of cuda:0
//   client ─┼─ UNIX socket ─ holder┤
//   client ─┘                      └─ copier of cpu
//
// One thread runs one poll(2) loop; residency.h makes the decisions. The loop never waits for
// anything else: a copier that leaves is polled until its process has ended, because a driver needs
// a long time to destroy a context, and another thread closes descriptors of device memory
// (closer.h).
//
// If the file of its socket is removed, clients cannot find the holder, and it would keep its
// memory for ever. Therefore it checks the file in each turn of the loop, at least every minute,
// and creates the socket again if the file is missing. If that fails, it exits as soon as no
// process has a lease.
//
//   running ──1──> leaving ──2──> reaped      (a copier)
//
//   1  The copier closes its socket, or it has another version of the protocol: the holder closes
//      its own end. The holder kills a copier that does not answer an order to stop within
//      kCopierEnd.
//   2  The copier's process ends; after kCopierEnd the holder kills it with SIGKILL. Its load then
//      fails or is ordered again. If the copier left without a load, the next load does not wait
//      for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace stfs::gpu {

struct HolderOptions {
  std::string socket_path;         // unused if systemd passes a socket (sd_listen_fds(3))
  std::string program;             // the path of stfs-gpu, which is started as copier
  std::uint64_t memory_limit = 0;  // bytes per device; 0: no limit
  bool background = false;         // listen, return 0, and serve as a daemon
  // Exits after this time without tensors, clients and loads; nullopt: never.
  std::optional<std::chrono::seconds> exit_idle;
  // A copier exits after this time without an order.
  std::chrono::seconds copier_idle{10};
};

// Runs until SIGTERM or SIGINT and returns the exit status. Returns 0 at once if another holder
// listens at the path. Throws Error kDeviceFailed.
int run_holder(const HolderOptions& options);

}  // namespace stfs::gpu
