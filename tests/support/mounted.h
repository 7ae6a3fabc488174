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
  std::string options;        // of the mount: "ro,nosuid,nodev"
  std::string type;           // "fuse.stfs"
  std::string source;         // fsname
  std::string super_options;  // of the file system
};

// All mounts at `path`, the topmost last.
std::vector<MountEntry> mounts_at(const std::filesystem::path& path);

// Unmounts everything at `path`, lazily if it is busy. For a test's own mountpoints.
void unmount_all(const std::filesystem::path& path);

// The processes with `argument` among their arguments: the daemons of a mountpoint.
std::vector<pid_t> processes_with(const std::string& argument);

// Empty if this process may mount; else the reason. Tried with a bare FUSE mount, so that a broken
// stfs does not look like a machine without FUSE.
std::string mount_unavailable();

// A mount for the length of a scope. The constructor throws the output of stfs if stfs fails. The
// destructor unmounts, and fails the test if the daemon died of a signal that the test did not
// send.
class Mounted {
 public:
  explicit Mounted(const std::vector<std::string>& sources,
                   const std::vector<std::string>& options = {});
  ~Mounted();
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // `stfs -u`.
  Outcome unmount();
  // The serving process.
  pid_t daemon() const;
  // Kills the serving process with SIGKILL and waits for its end.
  void kill_daemon();

 private:
  TempDir dir_;
  std::filesystem::path path_;
  bool death_expected_ = false;
};

// A mount by `stfs -f` as a child, for signals and logs.
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

// The directory of a checkpoint in tests/data.
inline std::filesystem::path test_data(std::string_view name) {
  return std::filesystem::path(STFS_TEST_DATA) / name;
}

// The base of every test that mounts. If this process may not mount, the test is skipped with the
// reason; with STFS_REQUIRE_MOUNT=1 in the environment (as in CI) it fails.
class MountTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

}  // namespace stfs::test
