// A daemon that is stopped, ended and mounted again while it has readers, and mounts on top of
// mounts. All tests run with and without a supervisor.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class LifecycleFaults : public MountTest, public ::testing::WithParamInterface<const char*> {
 protected:
  LifecycleFaults() : w_(random_tensor("w", "BF16", {256, 1024})) {
    std::filesystem::create_directory(mountpoint());
    write_safetensors(source(), {w_, random_tensor("d/x", "U8", {100})});
  }
  ~LifecycleFaults() override { unmount_all(mountpoint()); }

  std::filesystem::path source() const { return dir_ / "m.safetensors"; }
  std::filesystem::path mountpoint() const { return dir_ / "mnt"; }

  // With page_cache=direct the daemon answers every read. A mount that contains the source of
  // another mount uses another setting, because a source must be mappable.
  static Outcome stfs(const std::vector<std::string>& sources_and_mountpoint,
                      const std::string& cache = "direct") {
    std::vector<std::string> argv = {STFS_BINARY, "-o", GetParam(), "-o", "cache=" + cache};
    argv.insert(argv.end(), sources_and_mountpoint.begin(), sources_and_mountpoint.end());
    return run(argv);
  }
  static Outcome unmount(const std::filesystem::path& path, bool lazily = false) {
    std::vector<std::string> argv = {STFS_BINARY, "-u", path};
    if (lazily) argv.insert(argv.begin() + 2, "-z");
    return run(argv);
  }
  static void signal_all(const std::filesystem::path& path, int signal) {
    for (const pid_t pid : processes_with(path)) ::kill(pid, signal);
  }
  static void expect_nothing_left(const std::filesystem::path& path) {
    EXPECT_TRUE(mounts_at(path).empty());
    EXPECT_TRUE(eventually([&] { return processes_with(path).empty(); }));
  }

  TempDir dir_;
  Tensor w_;
};

INSTANTIATE_TEST_SUITE_P(Mode, LifecycleFaults, ::testing::Values("ro", "supervise"),
                         [](const auto& mode) {
                           return std::string(mode.param) == "ro" ? "Plain" : "Supervised";
                         });

// Threads that read one file until `stop`, and count reads, failed reads and reads of wrong bytes.
class Readers {
 public:
  Readers(const std::filesystem::path& file, const std::string& bytes, int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, file, &bytes, i] { read(file, bytes, i % 2 == 0); });
    }
  }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;
  ~Readers() {
    stop = true;
    for (std::thread& thread : threads_) thread.join();
  }

  // Waits until they have read `more` more times.
  bool read_more(std::uint64_t more) {
    const std::uint64_t before = rounds;
    return eventually([&] { return rounds >= before + more; });
  }

  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::atomic<std::uint64_t> errors = 0;
  std::atomic<std::uint64_t> wrong = 0;

 private:
  void read(const std::filesystem::path& file, const std::string& bytes, bool keeps_open) {
    std::string got(bytes.size(), '\0');
    int fd = -1;
    while (!stop) {
      if (fd < 0) fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
      const ssize_t n = fd < 0 ? -1 : ::pread64(fd, got.data(), got.size(), 0);
      if (n < 0) {
        ++errors;
      } else {
        const bool is_right = static_cast<std::size_t>(n) == bytes.size() && got == bytes;
        wrong += is_right ? 0 : 1;
        ++rounds;
      }
      if (fd >= 0 && (n < 0 || !keeps_open)) {
        ::close(fd);
        fd = -1;
      }
    }
    if (fd >= 0) ::close(fd);
  }

  std::vector<std::thread> threads_;
};

TEST_P(LifecycleFaults, ReadersResumeAfterStoppedDaemonContinues) {
  ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);
  {
    Readers readers(mountpoint() / "w", w_.bytes, 8);
    ASSERT_TRUE(readers.read_more(100));

    signal_all(mountpoint(), SIGSTOP);
    if (long_tests()) std::this_thread::sleep_for(std::chrono::minutes(1));
    signal_all(mountpoint(), SIGCONT);

    EXPECT_TRUE(readers.read_more(100));
    EXPECT_EQ(readers.errors, 0u);
    EXPECT_EQ(readers.wrong, 0u);
  }
  EXPECT_TRUE(eventually([&] { return unmount(mountpoint()).status == 0; }));
  expect_nothing_left(mountpoint());
}

TEST_P(LifecycleFaults, SigtermUnderReadersEndsCleanlyAndNewMountServesThem) {
  Readers readers(mountpoint() / "w", w_.bytes, 16);
  const std::uint64_t cycles = long_or(200, 4);
  for (std::uint64_t i = 0; i < cycles; ++i) {
    Process daemon(
        {STFS_BINARY, "-f", "-o", GetParam(), "-o", "page_cache=direct", source(), mountpoint()});
    ASSERT_TRUE(readers.read_more(50)) << daemon.err();

    daemon.signal(SIGTERM);
    const Outcome result = daemon.wait();

    ASSERT_EQ(result.status, 0) << result.err;
    ASSERT_EQ(result.err, "");
    expect_nothing_left(mountpoint());
  }
  EXPECT_EQ(readers.wrong, 0u);
}

TEST_P(LifecycleFaults, LazyUnmountKeepsOpenFilesReadable) {
  ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);
  const int fd = ::open((mountpoint() / "w").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const std::vector<pid_t> daemon = processes_with(mountpoint());

  EXPECT_EQ(unmount(mountpoint(), true).status, 0);
  ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);
  const std::string got = read_file("/proc/self/fd/" + std::to_string(fd));
  ::close(fd);

  EXPECT_EQ(got, w_.bytes);
  EXPECT_TRUE(eventually([&] {
    for (const pid_t pid : processes_with(mountpoint())) {
      if (std::find(daemon.begin(), daemon.end(), pid) != daemon.end()) return false;
    }
    return true;
  })) << "the first daemon runs although no file of its mount is open";
  EXPECT_EQ(read_file(mountpoint() / "w"), w_.bytes);
  EXPECT_EQ(unmount(mountpoint()).status, 0);
  expect_nothing_left(mountpoint());
}

TEST_P(LifecycleFaults, DaemonCoveredByOtherMountLeavesItMounted) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting tmpfs needs root";
  ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);
  ASSERT_EQ(::mount("tmpfs", mountpoint().c_str(), "tmpfs", 0, "size=1m"), 0);

  signal_all(mountpoint(), SIGTERM);

  EXPECT_TRUE(eventually([&] { return processes_with(mountpoint()).empty(); }));
  ASSERT_EQ(mounts_at(mountpoint()).size(), 2u);
  EXPECT_EQ(mounts_at(mountpoint()).back().type, "tmpfs");
  EXPECT_EQ(unmount(mountpoint()).status, 4) << "not an stfs mount";
  ASSERT_EQ(::umount2(mountpoint().c_str(), 0), 0);
  EXPECT_EQ(unmount(mountpoint()).status, 0) << "the mount that the daemon left below";
  expect_nothing_left(mountpoint());
}

TEST_P(LifecycleFaults, MountOnDirectoryOfMountWorksAndBothEnd) {
  ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);
  const std::filesystem::path above = mountpoint() / "d";

  const Outcome second = stfs({source(), above});
  const std::string got = second.status == 0 ? read_file(above / "w") : "";
  const Outcome refused = unmount(mountpoint());
  const Outcome inner = unmount(above);
  const Outcome outer = unmount(mountpoint());

  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(got, w_.bytes);
  EXPECT_EQ(refused.status, 4) << "it contains a mount";
  EXPECT_EQ(inner.status, 0) << inner.err;
  EXPECT_EQ(outer.status, 0) << outer.err;
  expect_nothing_left(above);
  expect_nothing_left(mountpoint());
}

TEST_P(LifecycleFaults, SourceInOtherMountIsServedAfterItsUnmount) {
  const std::filesystem::path second = dir_ / "second";
  std::filesystem::create_directory(second);
  ASSERT_EQ(stfs({source(), mountpoint()}, "kernel").status, 0);
  ASSERT_EQ(stfs({mountpoint() / ".stfs/merged.safetensors", second}).status, 0);

  EXPECT_EQ(read_file(second / "w"), w_.bytes);
  EXPECT_EQ(read_file(second / ".stfs/slice/w/5"), w_.bytes.substr(5 * 2048, 2048));
  EXPECT_EQ(unmount(mountpoint()).status, 4) << "busy: the second mount has a file open";
  EXPECT_EQ(unmount(mountpoint(), true).status, 0);
  EXPECT_EQ(read_file(second / "w"), w_.bytes);
  EXPECT_EQ(unmount(second).status, 0);

  expect_nothing_left(second);
  expect_nothing_left(mountpoint());
}

TEST_P(LifecycleFaults, MountsCoveringEachOtherEndWithoutDeadlock) {
  // The second mount serves a file of the first mount and covers the source of the first mount.
  const std::filesystem::path directory = dir_ / "sources";
  std::filesystem::create_directory(directory);
  std::filesystem::rename(source(), directory / "m.safetensors");
  ASSERT_EQ(stfs({directory / "m.safetensors", mountpoint()}, "kernel").status, 0);

  ASSERT_EQ(stfs({mountpoint() / ".stfs/merged.safetensors", directory}).status, 0);

  EXPECT_EQ(read_file(directory / "w"), w_.bytes);
  EXPECT_EQ(read_file(mountpoint() / "w"), w_.bytes);
  signal_all(mountpoint(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return mounts_at(mountpoint()).empty(); }));
  // Only pages in the kernel's cache remain of the second mount's source.
  const int fd = ::open((directory / "w").c_str(), O_RDONLY | O_CLOEXEC);
  std::string got(w_.bytes.size(), '\0');
  const ssize_t n = fd < 0 ? -1 : ::pread64(fd, got.data(), got.size(), 0);
  EXPECT_TRUE(n < 0 || got == w_.bytes) << n;
  if (fd >= 0) ::close(fd);
  EXPECT_EQ(unmount(directory, true).status, 0);
  expect_nothing_left(directory);
  expect_nothing_left(mountpoint());
}

TEST_P(LifecycleFaults, SourceCoveredUnderOtherPathIsServed) {
  if (::geteuid() != 0) GTEST_SKIP() << "a bind mount needs root";
  const std::filesystem::path directory = dir_ / "sources";
  const std::filesystem::path alias = dir_ / "alias";
  std::filesystem::create_directory(directory);
  std::filesystem::create_directory(alias);
  std::filesystem::rename(source(), directory / "m.safetensors");
  ASSERT_EQ(::mount(directory.c_str(), alias.c_str(), nullptr, MS_BIND, nullptr), 0);

  // The path of the source is outside the mountpoint, but the file is inside.
  const Outcome covered = stfs({alias / "m.safetensors", directory});
  EXPECT_EQ(covered.status, 0) << covered.err;
  EXPECT_EQ(read_file(directory / "w"), w_.bytes);
  EXPECT_EQ(unmount(directory).status, 0);
  expect_nothing_left(directory);

  const Outcome refused = stfs({directory / "m.safetensors", directory});
  EXPECT_EQ(refused.status, 4);
  EXPECT_NE(refused.err.find("would be hidden"), std::string::npos) << refused.err;
  ::umount2(alias.c_str(), MNT_DETACH);
  expect_nothing_left(directory);
}

TEST_P(LifecycleFaults, SourceOnSameMountIsRejected) {
  ASSERT_EQ(stfs({source(), mountpoint()}).status, 0);

  const Outcome result = stfs({mountpoint() / ".stfs/merged.safetensors", mountpoint()});

  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_EQ(mounts_at(mountpoint()).size(), 1u);
  EXPECT_EQ(read_file(mountpoint() / "w"), w_.bytes);
  EXPECT_EQ(unmount(mountpoint()).status, 0);
  expect_nothing_left(mountpoint());
}

}  // namespace
}  // namespace stfs::test
