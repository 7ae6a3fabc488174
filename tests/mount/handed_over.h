// The base class for tests of handed-over mounts, which another process made and passes to stfs as
// /dev/fd/N.
#pragma once

#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {

class HandOver : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!IsSkipped() && ::geteuid() != 0) GTEST_SKIP() << "only root may mount without fusermount3";
    std::filesystem::create_directory(mountpoint());
    // Another user serves the mount, so other users must be able to enter the directory.
    ::chmod(dir_.path().c_str(), 0755);
    std::filesystem::copy_file(test_data("single/voices.safetensors"), source());
  }
  ~HandOver() override {
    release();
    unmount_all(mountpoint());
    unmount_all(dir_.path());
  }

  std::filesystem::path mountpoint() const { return dir_ / "mnt"; }
  std::filesystem::path source() const { return dir_ / "model.safetensors"; }

  // Makes a mount without a server. The server inherits the descriptor.
  void mount(unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV, int access = O_RDWR) {
    device_ = checked(::open("/dev/fuse", access), "open");
    const std::string options = "fd=" + std::to_string(device_) +
                                ",rootmode=40000,user_id=65534,group_id=65534,allow_other";
    checked(::mount("stfs", mountpoint().c_str(), "fuse.stfs", flags, options.c_str()), "mount");
  }
  // Closes the descriptor of this process.
  void release() {
    if (device_ >= 0) ::close(device_);
    device_ = -1;
  }
  // Retries, because a mount stays busy for a moment after a read, while the kernel reads ahead.
  void unmount() const {
    EXPECT_TRUE(eventually([&] { return ::umount2(mountpoint().c_str(), 0) == 0; }))
        << std::strerror(errno);
  }
  std::string device_path() const { return "/dev/fd/" + std::to_string(device_); }

  // Returns the command that serves the mount as a user without privileges.
  std::vector<std::string> command(std::vector<std::string> options = {}) const {
    std::vector<std::string> argv{"setpriv",        "--reuid",
                                  "65534",          "--regid",
                                  "65534",          "--clear-groups",
                                  "--no-new-privs", "--bounding-set=-all",
                                  STFS_BINARY,      "-f"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {source(), device_path()});
    return argv;
  }
  Process serve(const std::vector<std::string>& options = {}) const {
    return Process(command(options));
  }

  void expect_served() const {
    EXPECT_EQ(names_in(mountpoint()), (std::vector<std::string>{"mask", "tokens"}));
    EXPECT_EQ(run({"sha256sum", mountpoint() / "tokens"}).status, 0);
  }
  static void expect_refusal(const Outcome& result, int status, const std::string& rule) {
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_NE(result.err.find(rule), std::string::npos) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }

  TempDir dir_;
  int device_ = -1;
};

}  // namespace stfs::test
