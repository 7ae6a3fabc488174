// The processors near a device. A copy from the memory of another processor's node is several times
// slower.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <sched.h>

#include <span>
#include <string>
#include <vector>

namespace stfs::gpu {

// Returns the processors near a PCI device ("0000:3b:00.0"), as the kernel lists them below `root`.
// Empty if the kernel lists none.
std::vector<int> local_processors(const std::string& pci, const std::string& root = "");

// During a scope, lets the calling thread run only on the `processors` that it may already use, so
// that the memory that it allocates is near them. Does nothing if it may use none of them.
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
