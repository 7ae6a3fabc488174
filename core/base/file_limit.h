// RLIMIT_FSIZE, the limit on the size of files. A write beyond it raises SIGXFSZ in the thread that
// writes. The signal ends a process that does not handle it.
//
// Thread safety: largest_file() may be called from any thread. The thread that constructs a
// NoFileLimitSignal must destroy it.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <limits>

namespace stfs {

// Returns the largest size in bytes that this process may give a file; 2^64 - 1 without a limit.
inline std::uint64_t largest_file() {
  rlimit limit{};
  const bool has_limit = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return has_limit ? limit.rlim_cur : std::numeric_limits<std::uint64_t>::max();
}

// While it exists, a write of this thread beyond the limit fails with EFBIG and has no other
// effect: the signal is blocked, and the destructor removes it. In this way a library need not
// change how its host program handles signals. A signal that was pending before stays pending.
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
