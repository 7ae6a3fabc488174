// How much memory of the host this process may take: what the machine has, and what the limits of
// its control groups (cgroups v1 and v2) leave of it.
#pragma once

#include <cstdint>
#include <string>

namespace stfs::gpu {

struct HostMemory {
  std::uint64_t total = 0;      // bytes: the machine's, or the least limit
  std::uint64_t available = 0;  // bytes that can be taken without swapping; page cache counts
};

// Reads /proc/meminfo, /proc/self/mountinfo, /proc/self/cgroup and the files of the control groups,
// all of them below `root`. A file that cannot be read or understood limits nothing.
HostMemory host_memory(const std::string& root = "");

}  // namespace stfs::gpu
