// A daemon's life: going into the background, talking from there, and ending in time.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace stfs {

// A process that has a parent waiting for it. The command that the user typed forks at once; the
// child does the work, with the terminal still its own, and the parent ends with the child's exit
// status, or with 0 when the child says that it is ready.
class Daemon {
 public:
  // Forks. Returns in the child only; with `foreground` nothing is forked.
  explicit Daemon(bool foreground);

  // Lets the parent go, and leaves its session, its terminal and its directory. When the parent is
  // no more, this process sends itself SIGTERM: a command that was ended leaves no mount behind.
  void ready();

  // The same for a child of this process, which leaves the parent to it.
  void ready_as_child();

  // A line for the administrator: to standard error in the foreground and until ready() or
  // ready_as_child(), to syslog from then on.
  void log(const std::string& line) const;

 private:
  void leave_terminal();

  bool foreground_;
  bool has_terminal_ = true;
  UniqueFd parent_;  // the pipe on which the parent waits
};

// Tells the service manager that started this process, if one did, as sd_notify(3) says.
void notify_service_manager(const char* state);

// How long a process that was asked to end may wait for a source that does not answer.
constexpr std::chrono::seconds kTimeToEnd{10};

// Between two calls of poll(2) when it fails.
constexpr std::chrono::milliseconds kPollAgain{100};

// Ends this process when `time` is over, whatever its threads wait for: with status 0 and a line on
// standard error. Uses SIGALRM, and unblocks it on the calling thread, since a program inherits
// its caller's blocked signals.
void end_within(std::chrono::seconds time);

// Runs `action` with standard error going into memory, and returns what was written there.
std::string capture_stderr(const std::function<void()>& action);

}  // namespace stfs
