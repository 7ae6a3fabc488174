// A counting semaphore: at most `free` holders at a time. A thread may release a turn that another
// thread has acquired. Replaces std::counting_semaphore, which with GCC 12 can sleep for ever
// although a turn is free (gcc.gnu.org/PR104928).
//
// Thread safety: all members may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace stfs {

class Semaphore {
 public:
  explicit Semaphore(std::ptrdiff_t free) : free_(free) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  ~Semaphore() = default;

  void acquire() {
    std::unique_lock lock(mutex_);
    is_free_.wait(lock, [this] { return free_ > 0; });
    --free_;
  }
  void release() {
    // Notify while the mutex is locked, because the thread that takes the turn may destroy this.
    const std::lock_guard lock(mutex_);
    ++free_;
    is_free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_free_;
  std::ptrdiff_t free_;
};

}  // namespace stfs
