#include "tools/gpu/device/processors.h"

#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

namespace stfs::gpu {

std::vector<int> local_processors(const std::string& pci, const std::string& root) {
  std::ifstream file(root + "/sys/bus/pci/devices/" + pci + "/local_cpulist");
  std::vector<int> found;
  for (std::string range; std::getline(file, range, ',');) {  // "0-15,32-47"
    const char* const end = range.data() + range.size();
    int first = 0;
    const auto [after, error] = std::from_chars(range.data(), end, first);
    if (error != std::errc()) return {};
    int last = first;
    if (after != end && *after == '-' && std::from_chars(after + 1, end, last).ec != std::errc()) {
      return {};
    }
    for (int one = first; one <= last && one < CPU_SETSIZE; ++one) found.push_back(one);
  }
  return found;
}

OnProcessors::OnProcessors(std::span<const int> processors) {
  if (processors.empty() || ::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const int one : processors) {
    if (CPU_ISSET(static_cast<unsigned>(one), &before_)) CPU_SET(static_cast<unsigned>(one), &near);
  }
  is_bound_ = CPU_COUNT(&near) > 0 && ::sched_setaffinity(0, sizeof near, &near) == 0;
}

OnProcessors::~OnProcessors() {
  if (is_bound_) ::sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace stfs::gpu
