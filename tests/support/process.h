// Runs programs as a user would, and keeps their output.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stfs::test {

// The time after which a test counts as hanging: ten times as long as a busy machine needs.
inline constexpr std::chrono::seconds kHang{300};

class PseudoTerminal;

// Checks the result of a system call; throws std::system_error if it is negative.
int checked(int result, const char* call);

// Returns these options for a sanitized program together with ours, for RunOptions.
std::vector<std::string> sanitizer_options(const std::string& options);

// How a program ended, and its output.
struct Outcome {
  int status = -1;  // the exit status, or 128 + the signal that ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

struct RunOptions {
  // "NAME=value", added to the environment of this process.
  std::vector<std::string> environment = {};
  std::filesystem::path directory = {};   // the working directory; "": this process's
  std::vector<int> ignored_signals = {};  // ignored when the program starts
  std::vector<int> blocked_signals = {};  // blocked when the program starts
  std::chrono::seconds limit = kHang;  // after this time the child is killed, but not its children
  // If not 0, the child's standard input, output and error are a terminal of type xterm with this
  // many columns, and Outcome::out is everything that it wrote there.
  unsigned terminal_columns = 0;
};

// A child process with empty standard input. Its output is kept in memory or on its terminal, so a
// daemon that it leaves running cannot block the test. The destructor kills it if it still runs.
class Process {
 public:
  explicit Process(const std::vector<std::string>& argv, const RunOptions& options = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const;
  void signal(int number) const;
  void type(const std::string& keys) const;  // on its terminal
  // Waits until the process ends, or until the limit.
  Outcome wait();
  // Returns its standard output, or its terminal's output, so far.
  std::string out() const;
  // Returns its standard error so far.
  std::string err() const;

 private:
  void reap();
  // Waits until the process ends, and reads its terminal while it waits. Returns false at the
  // limit.
  bool wait_for_end() const;

  std::chrono::seconds limit_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::unique_ptr<PseudoTerminal> terminal_;  // null without a terminal
  bool reaped_ = false;
  int wait_status_ = 0;
};

// Runs `argv` without a shell until it ends. argv[0] is looked up in PATH.
Outcome run(const std::vector<std::string>& argv, const RunOptions& options = {});

// Runs a script with /bin/bash and pipefail. "$1", "$2" and so on are `arguments`.
Outcome sh(const std::string& script, const std::vector<std::string>& arguments = {},
           const RunOptions& options = {});

// Returns true if all threads of a process have ended. /proc/PID/cmdline does not show this: it is
// empty as soon as the first thread has ended, while another thread may still take a request from
// /dev/fuse.
bool has_ended(pid_t pid);

// Returns true if `condition` becomes true before `limit`. For changes that the kernel does not
// report.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = kHang);

}  // namespace stfs::test
