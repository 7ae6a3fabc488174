// The threads that serve a mount: each reads a request from /dev/fuse and answers it, over and
// over. There are as many as requests are under way, within limits.
//
// libfuse has such a loop (fuse_session_loop_mt), which ends the mount when one of its threads gets
// no memory to read into. Here a thread is started only when it has all that it needs, and where it
// cannot be started the others go on.
//
// Thread safety: none but of the descriptor; it starts, and ends, on one thread.
#pragma once

#include "core/posix.h"

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

// Waits for a request on /dev/fuse and returns its size, or an errno, negated: ENODEV when the
// mount has been taken away. A point of cancellation (pthread_cancel(3)), so not noexcept.
ssize_t read_request(int device, std::span<std::byte> buffer);

class RequestLoop {
 public:
  struct Limits {
    std::size_t request;  // bytes of the longest one
    unsigned idle;        // threads that may wait for a request; the others end; 1 at least
    unsigned threads;     // in all; 1 at least
  };
  // Is called by many threads at a time and may not throw.
  using Answer = std::function<void(std::span<std::byte> request)>;

  // Serves from now on, with one thread at first. Throws Error kMountFailed and std::bad_alloc when
  // there is not even that.
  RequestLoop(int device, const Limits& limits, Answer answer);
  RequestLoop(const RequestLoop&) = delete;
  RequestLoop& operator=(const RequestLoop&) = delete;
  // Waits for the requests that are being answered.
  ~RequestLoop();

  // Shows POLLIN to poll(2) when there is nothing more to serve: the mount has been taken away, or
  // reading has failed, with error().
  int ended() const { return ended_.get(); }
  int error() const { return error_; }  // an errno, or 0

 private:
  struct Thread {  // detached; it removes itself at its end
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
  std::atomic<unsigned> waiting_ = 0;  // threads without a request

  std::mutex mutex_;  // of what follows
  bool stopping_ = false;
  std::list<Thread> threads_;
  std::condition_variable all_ended_;  // threads_ is empty
};

}  // namespace stfs
