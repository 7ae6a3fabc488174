// fork(2), as a library meets it: a child has the locks of its parent's threads, and not the
// threads.
//
// Thread safety: all.
#pragma once

#include <atomic>
#include <cstdint>

namespace stfs {

// A number of this process, not 0, that none of its ancestors has. A pid is none: processes of
// nested namespaces may all be process 1.
std::uint64_t this_process();

// A mutex for sections that are short and rare. A child may lock it whatever its parent's threads
// were doing, so what it guards must make sense in the midst of a section.
class ForkMutex {
 public:
  void lock();
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> holder_ = 0;  // this_process() of it; 0: nobody
};

}  // namespace stfs
