// Mounts with the real `stfs`, and takes down again what it mounted.
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

// What is mounted exactly at `path`, the topmost last.
std::vector<MountEntry> mounts_at(const std::filesystem::path& path);

// Unmounts everything at `path`, lazily where it is busy. For a mountpoint that the test made.
void unmount_all(const std::filesystem::path& path);

// The processes whose arguments contain `argument`: the daemon that serves a mountpoint.
std::vector<pid_t> processes_with(const std::string& argument);

// Empty when this process may mount; otherwise why it may not. Tried with a bare FUSE mount, so
// that a broken stfs is never taken for a machine without FUSE.
std::string mount_unavailable();

// A mount for the length of a scope. The constructor throws, with what stfs said, if stfs fails;
// the destructor unmounts, and fails the test if the daemon has died of something the test did not
// do.
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

// A mount by `stfs -f` as a child: for signals and for what is logged.
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

// A checkpoint's directory among tests/data.
inline std::filesystem::path test_data(std::string_view name) {
  return std::filesystem::path(STFS_TEST_DATA) / name;
}

// Base of every test that mounts. Without /dev/fuse or the permission to mount the test is skipped
// and says why; with STFS_REQUIRE_MOUNT=1 in the environment (as in CI) it fails instead.
class MountTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

}  // namespace stfs::test
