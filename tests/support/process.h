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

// The time after which a test counts as hanging: ten times what a busy machine needs.
inline constexpr std::chrono::seconds kHang{300};

class PseudoTerminal;

// Checks the result of a system call; throws std::system_error if it is negative.
int checked(int result, const char* call);

// For RunOptions: adds these options for a sanitized program to ours.
std::vector<std::string> sanitizer_options(const std::string& options);

// How a program ended.
struct Outcome {
  int status = -1;  // exit status, or 128 + the signal that ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

struct RunOptions {
  std::vector<std::string> environment = {};  // "NAME=value", added to this process's
  std::filesystem::path directory = {};       // the working directory; empty: this process's
  std::vector<int> ignored_signals = {};      // ignored when the program starts
  std::vector<int> blocked_signals = {};      // blocked when the program starts
  std::chrono::seconds limit = kHang;         // then the child alone is killed
  // If not 0, the child's standard input, output and error are a terminal of type xterm with this
  // many columns, and Outcome::out is all that it wrote there.
  unsigned terminal_columns = 0;
};

// A child process with empty standard input; its output is kept in memory or on its terminal, so a
// daemon that it leaves behind cannot block the test. The destructor kills it if it still runs.
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
  // Waits until it ends, or until the limit.
  Outcome wait();
  // Its standard output, or its terminal's, so far.
  std::string out() const;
  // Its standard error so far.
  std::string err() const;

 private:
  void reap();
  // Waits until it ends, and reads its terminal meanwhile. False at the limit.
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

// Runs a script with /bin/bash and pipefail. "$1", "$2".. are `arguments`.
Outcome sh(const std::string& script, const std::vector<std::string>& arguments = {},
           const RunOptions& options = {});

// Whether all threads of a process have ended. Its name in /proc says so too early: it goes with
// the first thread, while another may still take a request from /dev/fuse.
bool has_ended(pid_t pid);

// Whether `condition` becomes true before `limit`. For changes that the kernel does not report.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = kHang);

}  // namespace stfs::test
