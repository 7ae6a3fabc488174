#include "tests/support/mounted.h"

#include "tests/support/elsewhere.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace stfs::test {
namespace {

// mountinfo escapes blanks in paths as \040.
std::string unescaped(const std::string& field) {
  std::string out;
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out += static_cast<char>(std::stoi(field.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

std::vector<std::string> mount_command(const std::vector<std::string>& sources,
                                       const std::vector<std::string>& options,
                                       const std::filesystem::path& mountpoint) {
  std::vector<std::string> argv = {STFS_BINARY};
  argv.insert(argv.end(), options.begin(), options.end());
  for (const std::string& source : sources) argv.push_back(elsewhere(source));
  argv.push_back(mountpoint.string());
  return argv;
}

std::filesystem::path new_directory(const std::filesystem::path& directory) {
  std::filesystem::create_directory(directory);
  return directory;
}

bool dead(const std::filesystem::path& mountpoint) {
  struct stat64 status;
  return ::stat64(mountpoint.c_str(), &status) != 0 && errno == ENOTCONN;
}

}  // namespace

std::vector<MountEntry> mounts_at(const std::filesystem::path& path) {
  const std::string wanted =
      std::filesystem::weakly_canonical(path.parent_path()) / path.filename();
  std::vector<MountEntry> found;
  std::ifstream table("/proc/self/mountinfo");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, point, word;
    MountEntry entry;
    words >> id >> parent >> device >> root >> point >> entry.options;
    while (words >> word && word != "-") {
    }
    words >> entry.type >> entry.source >> entry.super_options;
    entry.source = unescaped(entry.source);
    if (unescaped(point) == wanted) found.push_back(entry);
  }
  return found;
}

void unmount_all(const std::filesystem::path& path) {
  for (std::size_t left = mounts_at(path).size(); left > 0; --left) {
    if (::geteuid() == 0) {
      ::umount2(path.c_str(), MNT_DETACH);
    } else {
      run({"fusermount3", "-u", "-z", path.string()});
    }
  }
}

std::vector<pid_t> processes_with(const std::string& argument) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == ::getpid()) continue;
    std::ifstream arguments(entry.path() / "cmdline");
    for (std::string word; std::getline(arguments, word, '\0');) {
      if (word == argument) {
        found.push_back(pid);
        break;
      }
    }
  }
  return found;
}

std::string mount_unavailable() {
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return std::string("/dev/fuse: ") + std::strerror(errno);
  std::string reason;
  if (::geteuid() != 0) {
    struct stat64 status;
    if (::stat64("/usr/bin/fusermount3", &status) != 0 || (status.st_mode & S_ISUID) == 0)
      reason = "not root, and no setuid fusermount3";
  } else {
    const TempDir probe;
    const std::string options =
        "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0";
    if (::mount("probe", probe.path().c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
      reason = std::string("mount: ") + std::strerror(errno);
    else
      ::umount2(probe.path().c_str(), MNT_DETACH);
  }
  ::close(device);
  return reason;
}

Mounted::Mounted(const std::vector<std::string>& sources, const std::vector<std::string>& options)
    : path_(new_directory(dir_ / "mnt")) {
  const Outcome result = run(mount_command(sources, options, path_));
  if (result.status != 0 || mounts_at(path_).empty()) {
    unmount_all(path_);
    throw std::runtime_error("stfs ended with " + std::to_string(result.status) + ": " +
                             result.err);
  }
}

Mounted::~Mounted() {
  if (!death_expected_ && !mounts_at(path_).empty() && dead(path_))
    ADD_FAILURE() << "the daemon died";
  unmount_all(path_);
}

Outcome Mounted::unmount() { return run({STFS_BINARY, "-u", path_.string()}); }

pid_t Mounted::daemon() const {
  const std::vector<pid_t> found = processes_with(path_.string());
  if (found.size() != 1)
    throw std::runtime_error(std::to_string(found.size()) + " processes serve the mount");
  return found.front();
}

void Mounted::kill_daemon() {
  death_expected_ = true;
  const pid_t killed = daemon();
  ::kill(killed, SIGKILL);
  if (!eventually([=] { return has_ended(killed); }))
    throw std::runtime_error("the daemon survived SIGKILL");
}

ForegroundMount::ForegroundMount(const std::vector<std::string>& sources,
                                 const std::vector<std::string>& options,
                                 const RunOptions& run_options)
    : path_(new_directory(dir_ / "mnt")),
      process_(
          [&] {
            std::vector<std::string> all = {"-f"};
            all.insert(all.end(), options.begin(), options.end());
            return mount_command(sources, all, path_);
          }(),
          run_options) {
  const int table = ::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
  // The kernel reports a change of the mount table by POLLPRI. The timeout is needed to detect that
  // the child has ended.
  while (process_.running() && mounts_at(path_).empty()) {
    pollfd changed = {table, POLLPRI, 0};
    ::poll(&changed, 1, 100);
  }
  ::close(table);
  struct stat64 status;
  if (mounts_at(path_).empty() || ::stat64(path_.c_str(), &status) != 0) {
    unmount_all(path_);
    throw std::runtime_error("stfs -f did not mount: " + process_.err());
  }
}

ForegroundMount::~ForegroundMount() { unmount_all(path_); }

void MountTest::SetUp() {
  const std::string reason = mount_unavailable();
  if (reason.empty()) return;
  const char* required = std::getenv("STFS_REQUIRE_MOUNT");
  if (required != nullptr && std::string_view(required) == "1")
    FAIL() << "STFS_REQUIRE_MOUNT=1, and no mount is possible: " << reason;
  GTEST_SKIP() << "no mount is possible: " << reason;
}

}  // namespace stfs::test
