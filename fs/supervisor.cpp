#include "fs/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace stfs {
namespace {

// How a process ended: "was killed by signal 9 (Killed)".
std::string ending(int status) {
  if (WIFEXITED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

}  // namespace

Supervisor::Supervisor(int signals, const Ledger& ledger, Hooks hooks)
    : signals_(signals), ledger_(ledger), hooks_(std::move(hooks)) {}

std::optional<int> Supervisor::run() {
  while (true) {
    const std::uint64_t answers = ledger_.answers();
    const Clock::time_point begin = Clock::now();
    int ends[2] = {-1, -1};
    const pid_t worker = ::pipe2(ends, O_CLOEXEC) == 0 ? ::fork() : -1;
    const int error = errno;
    const UniqueFd started(ends[0]);
    UniqueFd lifeline(ends[1]);
    if (worker == 0) {
      lifeline_ = std::move(lifeline);
      return std::nullopt;
    }
    lifeline = UniqueFd();
    int status = 0;
    if (worker > 0) {
      status = wait_for(worker, started);
      if (is_ending_ || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return 0;
      if (!has_served_ && WIFEXITED(status)) return WEXITSTATUS(status);  // it has said why
    }
    const auto what = [&] {
      return "supervise: the worker " +
             (worker > 0 ? ending(status) : "could not be started (" + errno_text(error) + ")");
    };
    if (!has_served_) throw Error(ErrorCode::kMountFailed, "", what());

    const bool was_useful =
        ledger_.answers() - answers >= kEnoughAnswers || Clock::now() - begin >= kEnoughTime;
    failures_ = was_useful ? 0 : failures_ + 1;
    const bool gives_up = failures_ == kGiveUp;
    try {
      hooks_.log(what() + (gives_up ? ", as did those before it as soon as they began: "
                                      "given up, and unmounted"
                                    : ": another one takes over"));
    } catch (const std::bad_alloc&) {
      // A line less in the log.
    }
    if (gives_up) return exit_status(ErrorCode::kMountFailed);
    if (sleep_until_signal(std::chrono::milliseconds(100) * failures_)) return 0;
  }
}

// Waits for the worker's end and returns how it ended. A signal is passed on to it; if it does not
// end then, it is killed, and no longer waited for: it may hang in a disk's driver.
int Supervisor::wait_for(pid_t worker, const UniqueFd& started) {
  constexpr int kMostMillisecondsToEnd = 10'000;
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)));
  pollfd events[] = {{ended.get(), POLLIN, 0}, {started.get(), POLLIN, 0}, {signals_, POLLIN, 0}};
  while (true) {
    const int n = ::poll(events, 3, is_ending_ ? kMostMillisecondsToEnd : -1);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) {
      ::kill(worker, SIGKILL);
      return SIGKILL;
    }
    // First, since a worker may have ended as soon as it served.
    if (events[1].revents != 0) {
      char byte = 0;
      events[1].fd = -1;  // once is enough
      if (::read(started.get(), &byte, 1) == 1 && !std::exchange(has_served_, true)) hooks_.ready();
    }
    if (events[0].revents != 0) break;
    if (events[2].revents != 0) {
      events[2].fd = -1;
      is_ending_ = true;
      ::kill(worker, SIGTERM);
      ::kill(worker, SIGCONT);  // it may have been stopped
    }
  }
  int status = 0;
  while (::waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// True when a signal came first.
bool Supervisor::sleep_until_signal(std::chrono::milliseconds time) const {
  pollfd signal{signals_, POLLIN, 0};
  int n = 0;
  while ((n = ::poll(&signal, 1, static_cast<int>(time.count()))) < 0 && errno == EINTR) {
  }
  return n > 0;
}

void Supervisor::serving() {
  const char byte = 1;
  if (::write(lifeline_.get(), &byte, 1) != 1 && !has_served_) ::kill(::getpid(), SIGTERM);
}

}  // namespace stfs
