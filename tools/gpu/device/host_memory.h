// How much host memory this process may use: the machine's memory, and the limits of its control
// groups (cgroups v1 and v2).
#pragma once

#include <cstdint>
#include <string>

namespace stfs::gpu {

struct HostMemory {
  std::uint64_t total = 0;      // bytes of the machine, or the lowest limit
  std::uint64_t available = 0;  // bytes usable without swapping, with reclaimable page cache
};

// Reads /proc/meminfo, /proc/self/mountinfo, /proc/self/cgroup and the control groups' files, all
// below `root`. An unreadable or malformed file sets no limit.
HostMemory host_memory(const std::string& root = "");

}  // namespace stfs::gpu
