// RLIMIT_FSIZE, the limit on the size of files: a write beyond it raises SIGXFSZ in the thread that
// writes, which ends a process that does not expect it.
//
// Thread safety: the functions may be called from any thread; a NoFileLimitSignal belongs to one.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <limits>

namespace stfs {

// The largest size that this process may give a file.
inline std::uint64_t largest_file() {
  rlimit limit{};
  const bool has_limit = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return has_limit ? limit.rlim_cur : std::numeric_limits<std::uint64_t>::max();
}

// While it lives, a write of this thread beyond the limit returns EFBIG and does nothing more: the
// signal is blocked, and the destructor takes it. So a library leaves the dispositions of its host
// program alone. A signal that was pending before stays pending.
class NoFileLimitSignal {
 public:
  NoFileLimitSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  }
  NoFileLimitSignal(const NoFileLimitSignal&) = delete;
  NoFileLimitSignal& operator=(const NoFileLimitSignal&) = delete;
  ~NoFileLimitSignal() {
    constexpr timespec kAtOnce{};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &kAtOnce);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace stfs
