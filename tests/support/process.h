// Runs programs as a user would, and keeps what they say.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stfs::test {

// What takes longer hangs. No machine is so busy that anything here needs a tenth of it.
inline constexpr std::chrono::seconds kHang{300};

class PseudoTerminal;

// The result of a system call; throws std::system_error where it is negative.
int checked(int result, const char* call);

// For RunOptions: a sanitized program is given these options beside ours.
std::vector<std::string> sanitizer_options(const std::string& options);

// How a program ended.
struct Outcome {
  int status = -1;  // exit status, or 128 + the signal that ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

struct RunOptions {
  std::vector<std::string> environment = {};  // "NAME=value", added to ours
  std::filesystem::path directory = {};       // where to run; empty: here
  std::vector<int> ignored_signals = {};      // by the program when it starts
  std::vector<int> blocked_signals = {};      // likewise
  std::chrono::seconds limit = kHang;         // then the child, and only the child, is killed
  // When not 0, the child has a terminal with so many columns as standard input, output and error,
  // of the type xterm; Outcome::out is then all that it has written to it.
  unsigned terminal_columns = 0;
};

// A child process, its standard input empty, its output kept in memory or on a terminal of its own:
// a daemon that it leaves behind can never keep the test waiting. Killed, if it still runs, at the
// end of scope.
class Process {
 public:
  explicit Process(const std::vector<std::string>& argv, const RunOptions& options = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const;
  void signal(int number) const;
  // Waits for the end, at most until the limit.
  Outcome wait();
  // What it has written to standard output, or to its terminal, so far.
  std::string out() const;
  // What it has written to standard error so far.
  std::string err() const;

 private:
  void reap();
  // Waits for the end and takes in what is written to the terminal meanwhile. False at the limit.
  bool wait_for_end() const;

  std::chrono::seconds limit_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::unique_ptr<PseudoTerminal> terminal_;  // none when it has none
  bool reaped_ = false;
  int wait_status_ = 0;
};

// Runs `argv` to its end, without a shell. argv[0] is looked up in PATH.
Outcome run(const std::vector<std::string>& argv, const RunOptions& options = {});

// Runs a script with /bin/bash, pipelines failing where any part fails. "$1", "$2".. are
// `arguments`.
Outcome sh(const std::string& script, const std::vector<std::string>& arguments = {},
           const RunOptions& options = {});

// Whether `condition` becomes true before `limit`. For what the kernel announces by no event.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = kHang);

}  // namespace stfs::test
