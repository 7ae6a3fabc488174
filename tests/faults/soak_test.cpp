// With many repetitions, the memory and descriptors of a mount do not grow with the requests.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/daemon_figures.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace stfs::test {
namespace {

class Soak : public MountTest {
 protected:
  Soak() {
    write_safetensors(dir_ / "m.safetensors", {random_tensor("w", "U8", {1000, 1000}, 1),
                                               random_tensor("v", "BF16", {100}, 2)});
  }

  // Opens a file, reads a few bytes and closes it. Returns false and sets errno on an error.
  static bool touch(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char bytes[16];
    const bool read = ::read(fd, bytes, sizeof bytes) > 0;
    ::close(fd);
    return read;
  }

  // `drop_names` makes the kernel, and therefore stfs, forget cached names.
  template <class Round>
  static void expect_no_growth(
      const Mounted& mount, std::uint64_t rounds, const Round& round,
      [[maybe_unused]] const std::function<void()>& drop_names = [] {}) {
    const pid_t daemon = mount.daemon();
    for (std::uint64_t i = 0; i < rounds / 10; ++i) ASSERT_TRUE(round(i)) << i;
    const DaemonFigures before(daemon);

    for (std::uint64_t i = 0; i < rounds; ++i) ASSERT_TRUE(round(i)) << i;

    EXPECT_EQ(DaemonFigures(daemon).descriptors, before.descriptors);
#ifndef STFS_SANITIZED  // a sanitizer keeps freed memory
    EXPECT_TRUE(eventually([&] {
      drop_names();
      return DaemonFigures(daemon).resident < before.resident + 1'000'000;
    })) << DaemonFigures(daemon).resident
        << ", before " << before.resident;
#endif
    const DaemonFigures after(daemon);
    if (long_tests()) {
      std::printf("resident before %.2f MB, after %llu rounds %.2f MB\n",
                  static_cast<double>(before.resident) / 1e6,
                  static_cast<unsigned long long>(rounds),
                  static_cast<double>(after.resident) / 1e6);
    }
  }

  TempDir dir_;
};

TEST_F(Soak, OpeningReadingAndClosingLeaksNothing) {
  const Mounted mount({dir_ / "m.safetensors"});
  const std::string paths[] = {mount / "w", mount / "v", mount / ".stfs/npy/w.npy",
                               mount / ".stfs/f32/v", mount / ".stfs/json/w.json"};

  expect_no_growth(mount, long_or(10'000'000, 5000),
                   [&](std::uint64_t i) { return touch(paths[i % std::size(paths)]); });
}

TEST_F(Soak, MillionSlicesLeakNothing) {
  const Mounted mount({dir_ / "m.safetensors"});
  const std::string slices = mount / ".stfs/slice/w/";

  if (::geteuid() != 0) GTEST_SKIP() << "only root can make the kernel forget names";
  if (!long_tests()) GTEST_SKIP() << "drops the caches of the whole system; STFS_LONG=1 runs it";
  const auto drop_names = [&] {
    // A remount drops unused names, and drop_caches drops their inodes.
    EXPECT_EQ(::mount(nullptr, mount.path().c_str(), nullptr,
                      MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr),
              0);
    write_file("/proc/sys/vm/drop_caches", "2");
  };
  // Every round looks up another name.
  const auto round = [&](std::uint64_t i) {
    if (i % 10'000 == 9999) drop_names();
    return touch(slices + std::to_string(i % 1000) + ":," + std::to_string(i / 1000));
  };
  expect_no_growth(mount, 1'000'000, round, drop_names);
}

TEST_F(Soak, MountingAndUnmountingLeavesNoMountOrProcess) {
  for (std::uint64_t i = 0; i < long_or(1000, 20); ++i) {
    Mounted mount({dir_ / "m.safetensors"});
    ASSERT_TRUE(touch(mount / "w"));
    ASSERT_EQ(mount.unmount().status, 0) << i;
    ASSERT_TRUE(mounts_at(mount.path()).empty());
    ASSERT_TRUE(eventually([&] { return processes_with(mount.path()).empty(); }));
  }
}

}  // namespace
}  // namespace stfs::test
