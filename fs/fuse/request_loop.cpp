#include "fs/fuse/request_loop.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

namespace stfs {
namespace {

// Returns true for FORGET requests. They arrive in large numbers, need no answer and take no time,
// so no thread is started for them.
bool is_forget(std::span<const std::byte> request) {
  fuse_in_header header{};
  std::memcpy(&header, request.data(), std::min(request.size(), sizeof header));
  return header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET;
}

}  // namespace

ssize_t read_request(int device, std::span<std::byte> buffer) {
  while (true) {
    // Pre-fault the buffer, because SIGKILL during a page fault in the kernel's copy gives the
    // reader EIO instead of a resend. One page is enough: a request that wants an answer contains
    // one or two names.
    constexpr std::size_t kLongest = 4096;
    volatile std::byte* const bytes = buffer.data();
    bytes[0] = std::byte{0};
    bytes[std::min(buffer.size(), kLongest) - 1] = std::byte{0};

    const ssize_t n = ::read(device, buffer.data(), buffer.size());
    if (n >= static_cast<ssize_t>(sizeof(fuse_in_header))) return n;
    if (n >= 0) return -EIO;
    // Try again. ENOENT: the request was interrupted. ENOMEM: the kernel dropped this request.
    if (errno != EINTR && errno != EAGAIN && errno != ENOENT && errno != ENOMEM) return -errno;
  }
}

bool resend_unanswered(int device) {
  constexpr int kNotifyResend = 7;  // FUSE_NOTIFY_RESEND, in <linux/fuse.h> of version 7.40
  const fuse_out_header again{sizeof again, kNotifyResend, 0};
  return ::write(device, &again, sizeof again) >= 0;
}

RequestLoop::RequestLoop(int device, const Limits& limits, Answer answer)
    : device_(device),
      limits_(limits),
      answer_(std::move(answer)),
      ended_(::eventfd(0, EFD_CLOEXEC)) {
  if (!ended_) throw_errno(ErrorCode::kMountFailed, "", "eventfd", errno);
  const std::lock_guard lock(mutex_);
  start_one();
}

RequestLoop::~RequestLoop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  // pthread_cancel() ends a read(2) that runs or is about to begin; a signal would miss the latter.
  for (const Thread& thread : threads_) ::pthread_cancel(thread.handle);
  all_ended_.wait(lock, [this] { return threads_.empty(); });
}

// The caller holds mutex_.
void RequestLoop::start_one() {
  threads_.push_front({std::unique_ptr<std::byte[]>(new std::byte[limits_.request]), {}});
  ++waiting_;
  try {
    const auto self = threads_.begin();
    std::thread thread = start_thread([this, self] { serve(self); });
    self->handle = thread.native_handle();
    thread.detach();
  } catch (...) {
    --waiting_;
    threads_.pop_front();
    throw;
  }
}

void RequestLoop::start_another() {
  const std::lock_guard lock(mutex_);
  if (stopping_ || threads_.size() >= limits_.threads) return;
  try {
    start_one();
  } catch (const std::exception&) {
    // Too many threads, or no memory: the next request waits until this one is answered.
  }
}

void RequestLoop::serve(std::list<Thread>::iterator self) {
  struct Leaving {  // runs on return and on cancellation
    ~Leaving() {
      const std::lock_guard lock(loop->mutex_);
      loop->threads_.erase(self);
      if (loop->threads_.empty()) loop->all_ended_.notify_all();
    }
    RequestLoop* loop;
    std::list<Thread>::iterator self;
  } const leaving{this, self};

  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  const std::span buffer(self->buffer.get(), limits_.request);
  while (true) {
    ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    const ssize_t n = read_request(device_, buffer);
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    if (n < 0) {
      // Both mean the end of the mount. The kernel returns ECONNABORTED if the mount ends while
      // read(2) is receiving a request.
      if (n != -ENODEV && n != -ECONNABORTED) error_ = static_cast<int>(-n);
      ::eventfd_write(ended_.get(), 1);
      return;
    }
    const auto request = buffer.first(static_cast<std::size_t>(n));
    const bool takes_time = !is_forget(request);
    if (takes_time && waiting_.fetch_sub(1) == 1) start_another();
    answer_(request);
    if (takes_time && waiting_.fetch_add(1) >= limits_.idle && may_leave()) return;
  }
}

// If more than limits_.idle threads wait, stops counting this thread and returns true.
bool RequestLoop::may_leave() {
  unsigned waiting = waiting_;
  do {
    if (waiting <= limits_.idle) return false;
  } while (!waiting_.compare_exchange_weak(waiting, waiting - 1));
  return true;
}

}  // namespace stfs
