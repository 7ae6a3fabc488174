// The threads that serve a mount: each reads a request from /dev/fuse and answers it, over and
// over. There are as many as requests are under way, within limits.
//
// libfuse's own loop (fuse_session_loop_mt) gives a thread its memory after it has started it, and
// ends the mount when there is none. Here the memory comes first. When a thread cannot be started,
// the others go on.
//
// Thread safety: none; one thread makes it and destroys it.
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
  // Called by many threads at a time. May not throw.
  using Answer = std::function<void(std::span<std::byte> request)>;

  // Serves from now on, with one thread at first. Throws Error kMountFailed if that one cannot be
  // started.
  RequestLoop(int device, const Limits& limits, Answer answer);
  RequestLoop(const RequestLoop&) = delete;
  RequestLoop& operator=(const RequestLoop&) = delete;
  // Waits for the requests that are being answered.
  ~RequestLoop();

  // poll(2) shows POLLIN for this descriptor when there is nothing more to serve: the mount has
  // been taken away, or reading has failed with error().
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
