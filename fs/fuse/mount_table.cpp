#include "fs/fuse/mount_table.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

namespace stfs {
namespace {

constexpr std::string_view kType = "fuse.stfs";

[[noreturn]] void fail(const std::string& path, const std::string& rule) {
  throw Error(ErrorCode::kMountFailed, path, rule);
}

// mountinfo writes a space, tab, newline or backslash as a backslash and three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  const auto digit = [&](std::size_t i) { return text[i] >= '0' && text[i] <= '7'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Runs fusermount3 and returns its exit status. Appends its standard error to `message`.
int run_fusermount(const std::string& path, bool lazy, std::string& message) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(path, "pipe: " + errno_text(errno));
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) fail(path, "fork: " + errno_text(errno));
  if (child == 0) {
    ::dup2(writing.get(), STDERR_FILENO);
    const char* flags = lazy ? "-uz" : "-u";
    ::execlp("fusermount3", "fusermount3", flags, "--", path.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  writing = UniqueFd();
  char buffer[256];
  for (ssize_t n; (n = ::read(reading.get(), buffer, sizeof buffer)) > 0;) {
    message.append(buffer, static_cast<std::size_t>(n));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  while (!message.empty() && message.back() == '\n') message.pop_back();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}

}  // namespace

std::optional<MountEntry> find_mount(std::string_view mountinfo, const std::string& path) {
  // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [FIELDS...] - TYPE SOURCE SUPEROPTIONS
  std::optional<MountEntry> found;
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const std::vector<std::string> fields(std::istream_iterator<std::string>(words), {});
    std::size_t dash = 6;
    while (dash < fields.size() && fields[dash] != "-") ++dash;
    if (dash + 2 >= fields.size() || unescape(fields[4]) != path) continue;
    found = MountEntry{fields[dash + 1], unescape(fields[dash + 2]),
                       fields[2]};  // the last line is the topmost mount
  }
  return found;
}

std::optional<MountEntry> mounted_at(const std::string& path) {
  std::ifstream file("/proc/self/mountinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return find_mount(text, path);
}

std::string resolve_mountpoint(const std::string& path, const std::string& advice) {
  const auto resolve = [](const std::string& p) {
    return std::unique_ptr<char, decltype(&std::free)>(::realpath(p.c_str(), nullptr), &std::free);
  };
  if (const auto whole = resolve(path)) return whole.get();
  const int error = errno;
  // realpath(3) fails on a dead mount. Resolve its parent directory instead.
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const std::size_t slash = trimmed.rfind('/');
  const std::string name = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
  const std::string above = slash == std::string::npos ? "." : trimmed.substr(0, slash + 1);
  if (error != ENOENT && !name.empty()) {
    if (const auto directory = resolve(above)) {
      std::string whole =
          std::string(directory.get()) + (directory.get()[1] == '\0' ? "" : "/") + name;
      if (mounted_at(whole)) return whole;
    }
  }
  if (path.empty()) fail("", "the mountpoint is an empty name: name a directory");
  if (error == ENOENT) fail(path, "no such directory (" + advice + ")");
  if (error == EACCES) fail(path, errno_text(error) + ": you may not enter a directory above it");
  if (error == ENOTDIR) fail(path, errno_text(error) + ": a file is in its path");
  fail(path, errno_text(error));
}

namespace {

void check_nothing_mounted(const std::string& path) {
  if (const auto mount = mounted_at(path)) {
    // A systemd automount unit mounts over its own autofs.
    if (mount->type == kType) {
      struct statfs status {};  // the kernel cannot answer statfs(2) without the server
      if (::statfs(path.c_str(), &status) != 0 && errno == ENOTCONN) {
        fail(path,
             "a dead mount: its server has ended; \"stfs -u " + printable(path) + "\" clears it");
      }
      fail(path, "already mounted: unmount it first (stfs -u)");
    }
    if (mount->type != "autofs")
      fail(path, "busy: a mount of type " + mount->type + " is there: choose another directory");
  }
}

}  // namespace

void check_mountpoint(const std::string& path) {
  check_nothing_mounted(path);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail(path, errno_text(errno));
  if (!S_ISDIR(status.st_mode))
    fail(path, "the mountpoint is not a directory (stfs SOURCE... MOUNTPOINT)");
  if (::access("/dev/fuse", F_OK) != 0) {
    fail(path,
         "/dev/fuse: " + errno_text(errno) +
             ": load the kernel's fuse module (modprobe fuse, as root), or give the device to "
             "this container (--device /dev/fuse)");
  }
}

void check_descriptor(int descriptor, const std::string& place) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    fail(place,
         "no such descriptor: the process that starts stfs must leave it open, without "
         "close-on-exec");
  }
  const dev_t fuse = makedev(10, 229);  // Documentation/admin-guide/devices.txt
  if (!S_ISCHR(status.st_mode) || status.st_rdev != fuse) {
    fail(place, "not a descriptor of /dev/fuse");
  }
  const int flags = ::fcntl(descriptor, F_GETFL);
  if ((flags & O_ACCMODE) != O_RDWR) fail(place, "not open for reading and writing");
  // Without requests, a read(2) with O_NONBLOCK would return at once, again and again.
  if ((flags & O_NONBLOCK) != 0) ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

UniqueFd lock_mountpoint(const std::string& path) {
  if (mounted_at(path)) {  // an autofs: open(2) would wait for the mount that we are about to make
    check_nothing_mounted(path);
    return {};
  }
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // If the directory cannot be opened, there is no lock; the check below remains.
  if (directory && ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fail(path, "busy: another process is mounting there: wait for it, or choose another directory");
  }
  check_nothing_mounted(path);
  return directory;
}

void raise_readahead(const std::string& device) {
  const std::string path = "/sys/class/bdi/" + device + "/read_ahead_kb";
  unsigned now = 0;
  if (!(std::ifstream(path) >> now) || now >= kReadaheadKib) return;
  std::ofstream(path) << kReadaheadKib;  // fails for users other than root, which is ignored
}

void unmount(const std::string& path, bool lazy) {
  const auto mount = mounted_at(path);
  if (!mount)
    fail(path, "nothing is mounted there (findmnt -t fuse.stfs lists the mounts of stfs)");
  if (mount->type != kType)
    fail(path, "not an stfs mount, but of type " + mount->type + " (umount unmounts it)");

  // After a reader closes its file, readahead keeps the mount busy for some milliseconds.
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  const int flags = UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0);
  while (::umount2(path.c_str(), flags) != 0) {
    int error = errno;
    std::string message = errno_text(error);
    if (error == EPERM) {
      message.clear();
      const int status = run_fusermount(path, lazy, message);
      if (status == 0) return;
      if (status == 127) {
        fail(path, "not permitted, and fusermount3 is not installed: install the package fuse3");
      }
      if (message.ends_with(errno_text(EBUSY))) error = EBUSY;
      constexpr std::string_view kProgram = "fusermount3: ";
      if (message.starts_with(kProgram)) message.erase(0, kProgram.size());
      message = printable(message) + ": root and the user who mounted it may unmount it";
    }
    if (error == EINVAL && mounted_at(path)) {
      message = "made in another mount namespace: unmount it there";
    }
    if (error != EBUSY) fail(path, message);
    if (Clock::now() > deadline) {
      fail(path,
           "busy: a file in it is open, or a process has its working directory there (-u -z "
           "detaches it at once; fuser -m " +
               printable(path) + " lists them)");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace stfs
