// What a library needs to survive fork(2): a child inherits the locks that its parent's threads
// hold, but not the threads, so nothing would ever unlock them.
//
// Thread safety: everything may be used from any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace stfs {

// Returns a number that identifies this process among the processes that it was forked from. It is
// never 0. A pid would not do, because in nested namespaces a process and its parent may both have
// pid 1.
std::uint64_t this_process();

// A mutex for critical sections that are short and rare. A child may lock it even if a thread of
// its parent held it at the fork. So the data that it guards must be usable at every moment, even
// in the middle of a critical section.
class ForkMutex {
 public:
  void lock();
  void unlock() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> holder_ = 0;  // this_process() of the holder, or 0 if it is unlocked
};

}  // namespace stfs
