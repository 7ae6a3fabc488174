// Processors near a device: a copy from the memory of another processor's node is several times
// slower.
//
// Thread safety: all of it.
#pragma once

#include <sched.h>

#include <span>
#include <string>
#include <vector>

namespace stfs::gpu {

// The processors near a PCI device ("0000:3b:00.0"), as the kernel lists them below `root`; empty
// where it does not.
std::vector<int> local_processors(const std::string& pci, const std::string& root = "");

// Lets the calling thread run only on some of the processors on which it may run, during a scope.
// Memory that it allocates then lies near them. Does nothing where it may run on none of them.
class OnProcessors {
 public:
  explicit OnProcessors(std::span<const int> processors);
  ~OnProcessors();
  OnProcessors(const OnProcessors&) = delete;
  OnProcessors& operator=(const OnProcessors&) = delete;

 private:
  cpu_set_t before_{};
  bool is_bound_ = false;
};

}  // namespace stfs::gpu
