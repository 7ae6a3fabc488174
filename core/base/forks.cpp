#include "core/base/forks.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace stfs {
namespace {

// The number of forks between the start of the program and this process. It is a global variable
// because the handler of pthread_atfork(3) takes no argument.
std::atomic<std::uint32_t> forks = 0;
[[maybe_unused]] const int registered =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t this_process() {
  // The pid distinguishes children that a plain system call made, which does not run the handler.
  return std::uint64_t{forks.load(std::memory_order_relaxed)} << 32 |
         static_cast<std::uint32_t>(::getpid());
}

void ForkMutex::lock() {
  constexpr std::chrono::microseconds kPause{50};
  const std::uint64_t process = this_process();
  std::uint64_t holder = 0;
  // A holder with another number is a thread of an ancestor. It does not exist in this process, so
  // this takes the lock over.
  while (!holder_.compare_exchange_weak(holder, process, std::memory_order_acquire)) {
    if (holder != process) continue;
    std::this_thread::sleep_for(kPause);
    holder = 0;
  }
}

}  // namespace stfs
