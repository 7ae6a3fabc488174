#include "tests/support/process.h"

#include "tests/support/pseudo_terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <thread>

namespace stfs::test {

int checked(int result, const char* call) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), call);
  return result;
}

namespace {

std::string contents(int fd) {
  std::string text;
  char block[1 << 16];
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(fd, block, sizeof block, offset);
    if (got <= 0) return text;
    text.append(block, static_cast<std::size_t>(got));
    offset += got;
  }
}

// Pointers for exec(3); the strings must outlive them.
std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::vector<std::string> sanitizer_options(const std::string& options) {
  std::vector<std::string> environment;
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* ours = std::getenv(name);
    environment.push_back(std::string(name) + "=" + (ours == nullptr ? "" : ours) + ":" + options);
  }
  return environment;
}

Process::Process(const std::vector<std::string>& argv, const RunOptions& options)
    : limit_(options.limit) {
  std::vector<std::string> environment = options.environment;
  if (options.terminal_columns != 0) {
    terminal_ = std::make_unique<PseudoTerminal>(options.terminal_columns);
    const auto is_type = [](const std::string& entry) { return entry.starts_with("TERM="); };
    if (std::ranges::none_of(environment, is_type)) environment.emplace_back("TERM=xterm");
  }
  const std::vector<std::string> given = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view ours(*entry);
    const std::string_view name = ours.substr(0, ours.find('=') + 1);
    const auto same_name = [&](const std::string& other) { return other.starts_with(name); };
    if (std::ranges::none_of(given, same_name)) environment.emplace_back(ours);
  }
  const std::vector<char*> arguments = pointers(argv);
  const std::vector<char*> variables = pointers(environment);
  out_fd_ = checked(::memfd_create("out", MFD_CLOEXEC), "memfd_create");
  err_fd_ = checked(::memfd_create("err", MFD_CLOEXEC), "memfd_create");
  const int out = terminal_ ? terminal_->end() : out_fd_;
  const int err = terminal_ ? terminal_->end() : err_fd_;
  // A signal that arrives before the child has its own signal actions waits until then.
  sigset_t all;
  sigfillset(&all);
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  sigset_t blocked = before;
  for (const int signal : options.blocked_signals) sigaddset(&blocked, signal);
  pid_ = ::fork();
  if (pid_ == 0) {  // only async-signal-safe calls, because other threads may hold locks
    // nohup(1) and background shells make the tests ignore these signals; reset them for the
    // programs.
    for (const int ignored : {SIGHUP, SIGINT}) ::signal(ignored, SIG_DFL);
    for (const int ignored : options.ignored_signals) ::signal(ignored, SIG_IGN);
    ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
    const int in = terminal_ ? terminal_->end() : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0 ||
        (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0))
      ::_exit(126);
    ::execvpe(arguments[0], arguments.data(), variables.data());
    ::_exit(127);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  checked(pid_, "fork");
  pid_fd_ = checked(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)), "pidfd_open");
}

Process::~Process() {
  if (!reaped_) {
    signal(SIGKILL);
    reap();
  }
  ::close(pid_fd_);
  ::close(out_fd_);
  ::close(err_fd_);
}

bool Process::running() const {
  pollfd ended = {pid_fd_, POLLIN, 0};
  return !reaped_ && ::poll(&ended, 1, 0) == 0;
}

void Process::signal(int number) const {
  if (!reaped_) ::kill(pid_, number);
}

void Process::type(const std::string& keys) const { terminal_->type(keys); }

void Process::reap() {
  while (::waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

Outcome Process::wait() {
  Outcome result;
  if (!reaped_) {
    if (!wait_for_end()) {
      result.timed_out = true;
      signal(SIGKILL);
    }
    reap();
  }
  result.status =
      WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : 128 + WTERMSIG(wait_status_);
  result.out = out();
  result.err = err();
  return result;
}

bool Process::wait_for_end() const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + limit_;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wanted[2] = {{pid_fd_, POLLIN, 0}, {terminal_ ? terminal_->readable() : -1, POLLIN, 0}};
    const int ready = ::poll(wanted, 2, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if ((wanted[0].revents & POLLIN) != 0) return true;
    if (ready == 0) return false;
    if (terminal_) terminal_->output();
  }
}

std::string Process::out() const { return terminal_ ? terminal_->output() : contents(out_fd_); }

std::string Process::err() const { return contents(err_fd_); }

Outcome run(const std::vector<std::string>& argv, const RunOptions& options) {
  return Process(argv, options).wait();
}

Outcome sh(const std::string& script, const std::vector<std::string>& arguments,
           const RunOptions& options) {
  std::vector<std::string> argv = {"/bin/bash", "-c", "set -eo pipefail\n" + script, "sh"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run(argv, options);
}

bool has_ended(pid_t pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH;
  pollfd ended = {fd, POLLIN, 0};
  const bool has = ::poll(&ended, 1, 0) > 0;
  ::close(fd);
  return has;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace stfs::test
