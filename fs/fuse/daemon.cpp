#include "fs/fuse/daemon.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

namespace stfs {

Daemon::Daemon(bool foreground) : foreground_(foreground) {
  if (foreground) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno(ErrorCode::kMountFailed, "", "pipe", errno);
  UniqueFd reading(ends[0]);
  parent_ = UniqueFd(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw_errno(ErrorCode::kMountFailed, "", "fork", errno);
  if (child == 0) {
    // If the command is killed, this child ends too, even while it loads from a server that hangs.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(exit_status(ErrorCode::kMountFailed));
    return;
  }

  parent_ = UniqueFd();
  char ready = 0;
  ssize_t n = 0;
  while ((n = ::read(reading.get(), &ready, 1)) < 0 && errno == EINTR) {
  }
  if (n == 1) ::_exit(0);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
  std::fprintf(stderr, "stfs: ended by signal %d before the mount was ready%s\n", WTERMSIG(status),
               WTERMSIG(status) == SIGKILL ? " (see dmesg for too little memory)" : "");
  ::_exit(exit_status(ErrorCode::kMountFailed));
}

void Daemon::leave_terminal() {
  ::setsid();
  if (::chdir("/") != 0) log("chdir: " + errno_text(errno));
  ::openlog("stfs", LOG_PID, LOG_DAEMON);
  has_terminal_ = false;
  if (const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC)); null) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
  }
}

void Daemon::ready_as_child() {
  parent_ = UniqueFd();
  if (!foreground_) leave_terminal();
}

void Daemon::ready() {
  is_ready_ = true;
  notify_service_manager("READY=1");
  if (foreground_) return;
  leave_terminal();
  ::prctl(PR_SET_PDEATHSIG, 0);
  const char one = 1;
  if (::write(parent_.get(), &one, 1) != 1) {
    // The parent was killed while it waited for the mount, so end this process too.
    ::kill(::getpid(), SIGTERM);
  }
  parent_ = UniqueFd();
}

void Daemon::log(const std::string& line) const {
  if (has_terminal_) {
    std::fprintf(stderr, "stfs: %s\n", line.c_str());
  } else {
    ::syslog(LOG_WARNING, "%s", line.c_str());
  }
}

void notify_service_manager(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length == 0 || length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // the abstract namespace
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return;
  // Ignore failures: the service manager has its own timeout.
  [[maybe_unused]] const ssize_t sent =
      ::sendto(socket.get(), state, std::strlen(state), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

void end_within(std::chrono::seconds time) {
  ::signal(SIGALRM, SIG_IGN);  // discards a pending SIGALRM
  struct sigaction action {};
  action.sa_handler = [](int) {
    constexpr std::string_view kLine =
        "stfs: ended while a source did not answer: see its network file system\n";
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kLine.data(), kLine.size());
    ::_exit(0);
  };
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(static_cast<unsigned>(time.count()));
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
}

namespace {

// Redirects standard error to `file` for its lifetime.
class Redirected {
 public:
  explicit Redirected(int file) : saved_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    std::fflush(stderr);
    if (saved_) ::dup2(file, STDERR_FILENO);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  ~Redirected() {
    std::fflush(stderr);
    if (saved_) ::dup2(saved_.get(), STDERR_FILENO);
  }

 private:
  UniqueFd saved_;
};

}  // namespace

std::string capture_stderr(const std::function<void()>& action) {
  const UniqueFd memory(::memfd_create("stderr", MFD_CLOEXEC));
  if (!memory) {
    action();
    return "";
  }
  {
    const Redirected redirected(memory.get());
    action();
  }
  std::string text(static_cast<std::size_t>(::lseek(memory.get(), 0, SEEK_END)), '\0');
  if (pread_exact(memory.get(), std::as_writable_bytes(std::span(text)), 0) != 0) return "";
  return text;
}

}  // namespace stfs
