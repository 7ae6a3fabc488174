// The holder: a process that keeps what was loaded, and nothing else. It holds descriptors of
// device memory and no CUDA context; the copier of a device does the copying and may die of it.
//
//   client ─┐                      ┌─ copier of cuda:0
//   client ─┼─ UNIX socket ─ holder┤
//   client ─┘                      └─ copier of cpu
//
// One thread, one loop; what it decides is in residency.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace stfs::gpu {

struct HolderOptions {
  std::string socket_path;         // ignored when a socket was handed over (sd_listen_fds(3))
  std::string program;             // stfs-gpu, for the copiers
  std::uint64_t memory_limit = 0;  // bytes a device; 0: none
  bool background = false;         // return (0) once it listens, and go on as a daemon
  std::optional<std::chrono::seconds> exit_idle;  // leave after so long with nothing to keep
  std::chrono::seconds copier_idle{10};
};

// Runs until SIGTERM or SIGINT; returns the exit status. When a holder listens at that path
// already, returns 0 at once. Throws Error kDeviceFailed.
int run_holder(const HolderOptions& options);

}  // namespace stfs::gpu
