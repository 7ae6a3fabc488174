// How much host memory this process may use. This depends on the machine's memory and on the limits
// of its control groups (cgroups v1 and v2).
#pragma once

#include <cstdint>
#include <string>

namespace stfs::gpu {

struct HostMemory {
  std::uint64_t total = 0;      // bytes of the machine, or the lowest limit if that is less
  std::uint64_t available = 0;  // bytes usable without swapping, including reclaimable page cache
};

// Reads /proc/meminfo, /proc/self/mountinfo, /proc/self/cgroup and the files of the control groups,
// all below `root`. A file that is unreadable or malformed sets no limit.
HostMemory host_memory(const std::string& root = "");

}  // namespace stfs::gpu
