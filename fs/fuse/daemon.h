// The daemon's process: it forks to the background, logs from there, and ends in time.
//
// Thread safety: Daemon must be constructed and destroyed in a single-threaded process, because it
// forks. log() may be called from any thread after ready() or ready_as_child(). capture_stderr()
// redirects the whole process.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace stfs {

// The command that the user has started forks at once. The child does the work and keeps the
// terminal until it is ready. The parent waits: it exits with 0 when the child is ready, or with
// the child's exit status if the child ends before that. If the parent is killed first, the child
// gets SIGTERM.
class Daemon {
 public:
  // Forks, and returns only in the child. With `foreground` it does not fork. Throws Error
  // kMountFailed.
  explicit Daemon(bool foreground);

  // Makes the parent exit with 0, and leaves its session, terminal and directory. If the parent is
  // dead, sends SIGTERM to this process, because a command that was killed must leave no mount.
  void ready();
  bool is_ready() const { return is_ready_; }

  // For a forked child of this process: leaves session, terminal and directory, without notifying
  // the parent.
  void ready_as_child();

  // Logs a line, without "\n", for the administrator: to standard error in the foreground and
  // before ready() or ready_as_child(), and to syslog afterwards.
  void log(const std::string& line) const;

 private:
  void leave_terminal();

  bool foreground_;
  bool has_terminal_ = true;
  bool is_ready_ = false;
  UniqueFd parent_;  // the pipe on which the parent waits
};

// Sends a state such as "READY=1" to the service manager (sd_notify(3)), if NOTIFY_SOCKET names
// one.
void notify_service_manager(const char* state);

// How long an ending process may wait for a source that does not answer.
constexpr std::chrono::seconds kTimeToEnd{10};

// The pause before calling poll(2) again after an error.
constexpr std::chrono::milliseconds kPollAgain{100};

// Makes alarm(2) end this process after `time`, even if its threads hang, with status 0 and a line
// on standard error. Unblocks SIGALRM on the calling thread, because a process inherits blocked
// signals.
void end_within(std::chrono::seconds time);

// Runs `action` and returns the text that it writes to standard error.
std::string capture_stderr(const std::function<void()>& action);

}  // namespace stfs
