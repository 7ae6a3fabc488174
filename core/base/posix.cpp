#include "core/base/posix.h"

#include "core/base/file_limit.h"
#include "core/base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

void refuse_irregular(const struct stat& status, const std::string& path) {
  if (S_ISREG(status.st_mode)) return;
  const std::string kind = S_ISDIR(status.st_mode)    ? "a directory"
                           : S_ISFIFO(status.st_mode) ? "a pipe: save its bytes in a file first"
                           : S_ISSOCK(status.st_mode) ? "a socket"
                                                      : "a device";
  throw Error(ErrorCode::kUnreadable, path, "not a regular file but " + kind);
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

std::string errno_text(int error) { return std::strerror(error); }

void throw_errno(ErrorCode code, const std::string& place, const std::string& subject, int error) {
  std::string rule = errno_text(error);
  if (error == EFBIG) rule += ": raise the limit on the size of files (ulimit -f)";
  throw Error(code, place, subject.empty() ? rule : subject + ": " + rule, error);
}

std::string dangling_link(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) || (error && error.value() != ENOENT)) return "";
  const std::filesystem::path target = std::filesystem::read_symlink(path, error);
  if (error) return "";
  return "a symbolic link to " + in_quotes(target.string()) + ", which is missing";
}

void throw_unreadable(const std::string& path, int error) {
  std::string advice;
  if (error == ENOENT) {
    if (const std::string link = dangling_link(path); !link.empty()) {
      advice = ": " + link + ": download it again";
    }
  } else if (error == EACCES) {
    struct stat status {};
    advice = ::stat(path.c_str(), &status) == 0
                 ? ": this user may not read it"
                 : ": this user may not enter one of its directories";
  } else if (error == EMFILE) {
    advice = ": raise the limit (ulimit -n)";
  }
  throw Error(error == ENOENT ? ErrorCode::kAbsent : ErrorCode::kUnreadable, path,
              errno_text(error) + advice, error);
}

UniqueFd open_regular(const std::string& path) {
  struct stat before {};
  if (::stat(path.c_str(), &before) != 0) throw_unreadable(path, errno);
  refuse_irregular(before, path);
  // With O_NONBLOCK, open(2) returns at once even if the name became a FIFO after stat(2).
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) throw_unreadable(path, errno);
  refuse_irregular(stat_of(fd.get(), path), path);
  return fd;
}

struct stat stat_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno(ErrorCode::kUnreadable, path, "", errno);
  return status;
}

int pread_exact(int fd, std::span<std::byte> buffer, std::uint64_t offset, std::size_t* filled) {
  std::size_t done = 0;
  int error = 0;
  while (error == 0 && done < buffer.size()) {
    const ssize_t n =
        ::pread(fd, buffer.data() + done, buffer.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno != EINTR) error = errno;
    if (n == 0) error = ESTALE;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  if (filled != nullptr) *filled = done;
  return error;
}

int write_exact(int fd, std::span<const std::byte> bytes) {
  const NoFileLimitSignal no_signal;
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return 0;
}

std::optional<std::string> extended_attribute(const std::string& path, const char* name) {
  std::string value(65536, '\0');  // XATTR_SIZE_MAX
  const ssize_t length = ::getxattr(path.c_str(), name, value.data(), value.size());
  if (length < 0 && (errno == ENODATA || errno == EOPNOTSUPP)) return std::nullopt;
  if (length < 0) throw_errno(ErrorCode::kUnreadable, path, "", errno);
  value.resize(static_cast<std::size_t>(length));
  return value;
}

std::string read_file(const std::string& path, std::uint64_t limit) {
  const UniqueFd fd = open_regular(path);
  const auto size = static_cast<std::uint64_t>(stat_of(fd.get(), path).st_size);
  if (size > limit) {
    throw Error(ErrorCode::kUnreadable, path,
                "larger than the limit of " + std::to_string(limit) + " bytes");
  }
  std::string text(size, '\0');
  if (const int error = pread_exact(fd.get(), std::as_writable_bytes(std::span(text)), 0)) {
    throw_errno(ErrorCode::kUnreadable, path, "", error);
  }
  return text;
}

std::vector<std::string> names_in(const std::string& path) {
  struct Close {
    void operator()(DIR* directory) const { ::closedir(directory); }
  };
  const std::unique_ptr<DIR, Close> directory(::opendir(path.c_str()));
  if (!directory) throw_unreadable(path, errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    names.emplace_back(entry->d_name);
  }
  if (errno != 0) throw_errno(ErrorCode::kUnreadable, path, "", errno);
  return names;
}

std::thread start_thread(std::function<void()> body) {
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before{};
  };
  try {
    const Blocked blocked;  // a new thread has the mask of its creator
    return std::thread(std::move(body));
  } catch (const std::system_error& refused) {
    throw_errno(ErrorCode::kMountFailed, "", "starting a thread", refused.code().value());
  }
}

void on_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&](std::size_t i) {
    try {
      work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(count);
    for (std::size_t i = 1; i < count; ++i) others.push_back(start_thread([&run, i] { run(i); }));
  } catch (const std::exception&) {
    // Continue with the threads that have started.
  }
  run(0);
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

UniqueFd take_ending_signals(ErrorCode failure) {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction inherited {};
    ::sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN || signal == SIGTERM) sigaddset(&ending, signal);
  }
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  UniqueFd signals(::signalfd(-1, &ending, SFD_CLOEXEC));
  if (!signals) throw_errno(failure, "", "signalfd", errno);
  return signals;
}

std::string absolute_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr),
                                                             &std::free);
  if (!resolved) throw_unreadable(path, errno);
  return resolved.get();
}

}  // namespace stfs
