#include "fs/fuse/supervisor.h"

#include "fs/fuse/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

namespace stfs {
namespace {

// The bytes that a worker writes to its pipe.
constexpr char kServing = 's';
constexpr char kEnding = 'e';

bool tell(const UniqueFd& pipe, char state) { return ::write(pipe.get(), &state, 1) == 1; }

// Returns how a process ended, such as "was killed by signal 9 (Killed)".
std::string end_of(int status) {
  if (WIFEXITED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

}  // namespace

void Worker::serving() {
  if (!tell(pipe_, kServing) && is_first_) ::kill(::getpid(), SIGTERM);
}

void Worker::ending() { tell(pipe_, kEnding); }

bool Worker::is_orphan() const {
  pollfd supervisor{pipe_.get(), 0, 0};
  return ::poll(&supervisor, 1, 0) > 0;
}

Supervisor::Supervisor(int signals, const Ledger& ledger, Hooks hooks)
    : signals_(signals), ledger_(ledger), hooks_(std::move(hooks)) {}

int Supervisor::run(const Work& work) {
  while (true) {
    const std::uint64_t answers = ledger_.answers();
    const Clock::time_point begin = Clock::now();
    std::string death = "supervise: the worker ";
    UniqueFd pipe;
    const pid_t worker = start(work, pipe);
    if (worker > 0) {
      const int status = wait_for(worker, pipe);
      if (is_ending_ || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return 0;
      if (!has_served_ && WIFEXITED(status)) return WEXITSTATUS(status);  // it logged why
      death += end_of(status);
    } else {
      death += "could not be started (" + errno_text(-worker) + ")";
    }
    if (!has_served_)
      throw Error(ErrorCode::kMountFailed, "", death + ": mount without -o supervise to see why");

    const bool was_useful =
        ledger_.answers() - answers >= kEnoughAnswers || Clock::now() - begin >= kEnoughTime;
    failures_ = was_useful ? 0 : failures_ + 1;
    hooks_.log(death + ": another worker takes over");
    if (sleep_until_signal(pause_after(failures_))) return 0;
  }
}

// Forks a worker. Returns its process id and sets `pipe` to the reading end, or returns a negative
// errno.
pid_t Supervisor::start(const Work& work, UniqueFd& pipe) const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -errno;
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return -errno;
  if (pid == 0) {
    reading = UniqueFd();
    Worker worker(std::move(writing), !has_served_, failures_ >= kDistrust);
    ::_exit([&]() noexcept { return work(worker); }());
  }
  pipe = std::move(reading);
  return pid;
}

// Waits until the worker ends, and returns its wait status. Kills an ending worker after kTimeToEnd
// without waiting for its death, because it may hang in a disk's driver.
int Supervisor::wait_for(pid_t worker, const UniqueFd& pipe) {
  pollfd events[] = {{pipe.get(), POLLIN, 0}, {signals_, POLLIN, 0}};
  while (true) {
    const auto patience = std::chrono::milliseconds(kTimeToEnd).count();
    const int n = ::poll(events, 2, is_ending_ ? static_cast<int>(patience) : -1);
    if (n < 0) {
      // For example EINVAL while RLIMIT_NOFILE is less than two. Keep the mount and try again.
      if (errno != EINTR) std::this_thread::sleep_for(kPollAgain);
      continue;
    }
    if (n == 0) {
      ::kill(worker, SIGKILL);
      return SIGKILL;
    }
    if (events[0].revents != 0) {
      char state = 0;
      if (::read(pipe.get(), &state, 1) != 1) break;  // end of file: the worker is dead
      if (state == kServing && !std::exchange(has_served_, true)) hooks_.ready();
      if (state == kEnding) {
        is_ending_ = true;
        hooks_.ending();
      }
    }
    if (events[1].revents != 0) {
      events[1].fd = -1;
      is_ending_ = true;
      ::kill(worker, SIGCONT);  // a stopped worker would not act on SIGTERM
      hooks_.ending();
      ::kill(worker, SIGTERM);
    }
  }
  int status = 0;
  while (::waitpid(worker, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Returns true if a signal arrives within `time`.
bool Supervisor::sleep_until_signal(std::chrono::milliseconds time) const {
  pollfd signal{signals_, POLLIN, 0};
  int n = 0;
  while ((n = ::poll(&signal, 1, static_cast<int>(time.count()))) < 0 && errno == EINTR) {
  }
  return n > 0;
}

std::chrono::milliseconds Supervisor::pause_after(unsigned failures) {
  return std::chrono::milliseconds(100) * std::min(failures, 10U);
}

}  // namespace stfs
