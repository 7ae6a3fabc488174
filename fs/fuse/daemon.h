// The daemon's process: fork to the background, log from there, and end in time.
//
// Thread safety: construct and destroy Daemon in a single-threaded process, since it forks. log()
// may be called from any thread after ready() or ready_as_child(). capture_stderr redirects the
// whole process.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace stfs {

// The command that the user typed forks at once. The child does the work and keeps the terminal
// until it is ready. The parent waits: it exits with 0 when the child is ready, or with the child's
// exit status when it ends before that. When the parent is killed first, the child gets SIGTERM.
class Daemon {
 public:
  // Forks and returns in the child only; with `foreground` it does not fork. Throws Error
  // kMountFailed.
  explicit Daemon(bool foreground);

  // Ends the parent, and leaves its session, terminal and directory. If the parent is dead, sends
  // SIGTERM to this process: a command that was killed leaves no mount behind.
  void ready();
  bool is_ready() const { return is_ready_; }

  // For a forked child of this process: leaves session, terminal and directory, and does not tell
  // the parent.
  void ready_as_child();

  // Logs a line, without "\n", for the administrator: to syslog after ready() or ready_as_child(),
  // to standard error before and in the foreground.
  void log(const std::string& line) const;

 private:
  void leave_terminal();

  bool foreground_;
  bool has_terminal_ = true;
  bool is_ready_ = false;
  UniqueFd parent_;  // the pipe on which the parent waits
};

// Sends a state to the service manager (sd_notify(3)), if NOTIFY_SOCKET names one.
void notify_service_manager(const char* state);

// How long an ending process may wait for a source that does not answer.
constexpr std::chrono::seconds kTimeToEnd{10};

// The pause before calling poll(2) again after an error.
constexpr std::chrono::milliseconds kPollAgain{100};

// Ends this process after `time` by alarm(2), even while its threads hang: with status 0 and a line
// on standard error. Unblocks SIGALRM on the calling thread: a program inherits blocked signals.
void end_within(std::chrono::seconds time);

// Runs `action` and returns what it writes to standard error.
std::string capture_stderr(const std::function<void()>& action);

}  // namespace stfs
