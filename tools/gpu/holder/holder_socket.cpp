#include "tools/gpu/holder/holder_socket.h"

#include "core/base/error.h"
#include "tools/gpu/protocol/message.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string_view>

namespace stfs::gpu {
namespace {

constexpr int kHandedOver = 3;  // SD_LISTEN_FDS_START

[[noreturn]] void socket_failed(const std::string& place, int error) {
  throw_errno(ErrorCode::kDeviceFailed, place, "", error);
}

UniqueFd stream_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) socket_failed("socket", errno);
  return fd;
}

std::string directory_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// Returns true if only this user can write to a directory. Returns false for a symbolic link, even
// to such a directory.
bool is_private(const std::string& directory) {
  struct stat status {};
  return ::lstat(directory.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 022) == 0;
}

UniqueFd locked(const std::string& socket_path, bool waits) {
  const std::string path = socket_path + ".lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) socket_failed(path, errno);
  while (::flock(lock.get(), waits ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) socket_failed(path, errno);
  }
  return lock;
}

// Returns true if a process listens at `path`. connect(2) gives EAGAIN if its queue is full.
bool has_listener(const std::string& path) {
  const sockaddr_un address = socket_address(path);
  const UniqueFd fd = stream_socket();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN) {
    return true;
  }
  if (errno != ENOENT && errno != ECONNREFUSED) socket_failed(path, errno);
  return false;
}

}  // namespace

std::optional<HolderSocket> HolderSocket::handed_over() {
  const char* pid = std::getenv("LISTEN_PID");
  const char* count = std::getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::to_string(::getpid()) != pid) return std::nullopt;
  if (std::string_view(count) != "1") socket_failed("LISTEN_FDS", EINVAL);
  UniqueFd fd(kHandedOver);
  int listens = 0;
  socklen_t length = sizeof listens;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) {
    socket_failed("LISTEN_FDS", errno);
  }
  if (listens == 0) socket_failed("LISTEN_FDS", EINVAL);
  ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  HolderSocket socket(std::move(fd));
  socket.is_systemds_ = true;
  sockaddr_un address{};
  length = sizeof address - 1;  // keeps the path NUL-terminated
  struct stat status {};
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
      address.sun_family == AF_UNIX && ::lstat(address.sun_path, &status) == 0 &&
      S_ISSOCK(status.st_mode)) {
    socket.path_ = address.sun_path;
    socket.inode_ = {status.st_dev, status.st_ino};
  }
  return socket;
}

std::optional<HolderSocket> HolderSocket::listen_at(const std::string& path) {
  return listen(path, true);
}

std::optional<HolderSocket> HolderSocket::listen(const std::string& path, bool waits_for_lock) {
  const sockaddr_un address = socket_address(path);
  const UniqueFd lock = locked(path, waits_for_lock);
  if (has_listener(path)) return std::nullopt;
  HolderSocket socket(stream_socket());
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) socket_failed(path, ENOTSOCK);  // never delete a user's file
    ::unlink(path.c_str());
  }
  const mode_t mask = ::umask(0177);
  const bool bound =
      ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  ::umask(mask);
  if (!bound) socket_failed(path, error);
  if (::lstat(path.c_str(), &status) != 0) socket_failed(path, errno);
  socket.path_ = path;
  socket.inode_ = {status.st_dev, status.st_ino};
  if (::listen(socket.fd(), SOMAXCONN) != 0) socket_failed(path, errno);
  if (::stat(directory_of(path).c_str(), &status) == 0) {
    socket.directory_ = {status.st_dev, status.st_ino};
  }
  return socket;
}

bool HolderSocket::is_lost() const {
  if (path_.empty()) return false;
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0) return Inode{status.st_dev, status.st_ino} != inode_;
  return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP;
}

bool HolderSocket::restore() noexcept {
  if (is_systemds_ || path_.empty()) return false;
  try {
    const std::string directory = directory_of(path_);
    struct stat status {};
    const bool is_the_same = ::stat(directory.c_str(), &status) == 0 &&
                             Inode{status.st_dev, status.st_ino} == directory_;
    if (!is_the_same && !is_private(directory)) return false;
    std::optional<HolderSocket> again = listen(path_, false);
    if (again) *this = std::move(*again);
    return again.has_value();
  } catch (const std::exception&) {
    return false;
  }
}

// Renames the path before it checks the queue, so that no client can connect between the check and
// the unlink.
bool HolderSocket::unlink_path(bool even_if_client_waits) {
  if (path_.empty() || is_systemds_) return true;
  UniqueFd lock;
  if (!is_lost()) lock = locked(path_, true);
  const std::string aside = path_ + ".gone";
  struct stat status {};
  const bool is_ours = ::lstat(path_.c_str(), &status) == 0 &&
                       Inode{status.st_dev, status.st_ino} == inode_ &&
                       ::rename(path_.c_str(), aside.c_str()) == 0;
  pollfd waiting{listener_.get(), POLLIN, 0};
  if (!even_if_client_waits && ::poll(&waiting, 1, 0) != 0) {
    if (is_ours) ::rename(aside.c_str(), path_.c_str());
    return false;
  }
  if (is_ours) ::unlink(aside.c_str());
  path_.clear();
  return true;
}

bool HolderSocket::retire() noexcept {
  try {
    return unlink_path(false);
  } catch (const std::exception&) {
    return false;
  }
}

void HolderSocket::remove() noexcept {
  try {
    unlink_path(true);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the directory may be gone
  }
}

}  // namespace stfs::gpu
