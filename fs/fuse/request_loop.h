// The threads that serve a mount. Each thread reads a request from /dev/fuse, answers it, and reads
// the next. The loop starts and ends threads according to the number of requests in flight, within
// limits.
//
// libfuse's own loop (fuse_session_loop_mt) allocates a thread's memory after starting the thread,
// and ends the mount if that fails. Here the memory is allocated first, and if a thread cannot be
// started, the other threads continue.
//
// Thread safety: one thread constructs and destroys it; ended() and error() may be called from any
// thread.
#pragma once

#include "core/base/posix.h"

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>

namespace stfs {

// Waits for a request on /dev/fuse and returns its size in bytes, or a negative errno: -ENODEV or
// -ECONNABORTED after an unmount. A cancellation point (pthreads(7)), so not noexcept.
ssize_t read_request(int device, std::span<std::byte> buffer);

// Asks the kernel to resend the requests that were read and not answered (FUSE_NOTIFY_RESEND).
// Returns false before Linux 6.9, and after an unmount.
bool resend_unanswered(int device);

class RequestLoop {
 public:
  struct Limits {
    std::size_t request;  // maximum bytes of a request
    unsigned idle;        // maximum number of threads that wait for a request; at least 1
    unsigned threads;     // maximum number of threads; at least 1
  };
  // Answers one request. Called by several threads at the same time. Must not throw.
  using Answer = std::function<void(std::span<std::byte> request)>;

  // Starts serving with one thread. Throws Error kMountFailed or std::bad_alloc if that fails.
  RequestLoop(int device, const Limits& limits, Answer answer);
  RequestLoop(const RequestLoop&) = delete;
  RequestLoop& operator=(const RequestLoop&) = delete;
  ~RequestLoop();  // waits until the requests in flight are answered

  // Returns an eventfd(2) that becomes readable when the loop can serve no more, either after an
  // unmount or because read(2) has failed. In the second case error() returns the errno.
  int ended() const { return ended_.get(); }
  int error() const { return error_; }  // 0 if read(2) has not failed

 private:
  struct Thread {  // detached; removes itself from threads_ when it ends
    std::unique_ptr<std::byte[]> buffer;
    pthread_t handle;
  };

  void start_one();
  void start_another();
  void serve(std::list<Thread>::iterator self);
  bool may_leave();

  const int device_;
  const Limits limits_;
  const Answer answer_;
  const UniqueFd ended_;  // eventfd(2)
  std::atomic<int> error_ = 0;
  std::atomic<unsigned> waiting_ = 0;  // number of threads without a request

  std::mutex mutex_;  // guards the members below
  bool stopping_ = false;
  std::list<Thread> threads_;
  std::condition_variable all_ended_;  // threads_ is empty
};

}  // namespace stfs
