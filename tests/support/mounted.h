// Mounts with the real `stfs`, and unmounts.
#pragma once

#include "tests/support/files.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

// One line of /proc/self/mountinfo.
struct MountEntry {
  std::string options;        // options of the mount: "ro,nosuid,nodev"
  std::string type;           // "fuse.stfs"
  std::string source;         // fsname
  std::string super_options;  // options of the file system
};

// Returns all mounts at `path`, the topmost last.
std::vector<MountEntry> mounts_at(const std::filesystem::path& path);

// Unmounts everything at `path`, lazily if it is busy. Only for a test's own mountpoints.
void unmount_all(const std::filesystem::path& path);

// Returns the processes that have `argument` among their arguments, such as the daemons of a
// mountpoint.
std::vector<pid_t> processes_with(const std::string& argument);

// Returns "" if this process may mount, or else the reason. Tries a bare FUSE mount, so that a
// broken stfs does not look like a machine without FUSE.
std::string mount_unavailable();

// A mount during a scope. The constructor throws the output of stfs if stfs fails. The destructor
// unmounts, and fails the test if the daemon died of a signal that the test did not send.
class Mounted {
 public:
  explicit Mounted(const std::vector<std::string>& sources,
                   const std::vector<std::string>& options = {});
  ~Mounted();
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // Runs `stfs -u`.
  Outcome unmount();
  // Returns the serving process.
  pid_t daemon() const;
  // Kills the serving process with SIGKILL and waits for its end.
  void kill_daemon();

 private:
  TempDir dir_;
  std::filesystem::path path_;
  bool death_expected_ = false;
};

// A mount by `stfs -f` as a child process, for tests of signals and logs.
class ForegroundMount {
 public:
  explicit ForegroundMount(const std::vector<std::string>& sources,
                           const std::vector<std::string>& options = {},
                           const RunOptions& run_options = {});
  ~ForegroundMount();
  ForegroundMount(const ForegroundMount&) = delete;
  ForegroundMount& operator=(const ForegroundMount&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  Process& process() { return process_; }

 private:
  TempDir dir_;
  std::filesystem::path path_;
  Process process_;
};

// Returns the directory of a checkpoint in tests/data.
inline std::filesystem::path test_data(std::string_view name) {
  return std::filesystem::path(STFS_TEST_DATA) / name;
}

// The base of every test that mounts. If this process may not mount, the test is skipped with the
// reason; with STFS_REQUIRE_MOUNT=1 in the environment, as in CI, it fails.
class MountTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

}  // namespace stfs::test
