// Readers that are killed during reads, statistics and digests leave nothing behind: no descriptor,
// memory, thread or looked-up name.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/daemon_figures.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace stfs::test {
namespace {

class InterruptedReaders : public MountTest {};

TEST_F(InterruptedReaders, LeaveNothingBehind) {
  const TempDir dir;
  // A sparse file: large enough that a reader is killed during its read, and free of cost.
  const std::string header =
      R"({"w":{"dtype":"BF16","shape":[4096,65536],"data_offsets":[0,536870912]}})";
  write_file(dir / "m.safetensors", safetensors_bytes(header, ""));
  std::filesystem::resize_file(dir / "m.safetensors", 8 + header.size() + 536'870'912);
  const Mounted mount({dir / "m.safetensors"});
  const std::string root = mount.path();
  const auto round = [&](std::uint64_t number) {
    const std::string paths[] = {root + "/w",
                                 root + "/.stfs/stats/w.json",
                                 root + "/.stfs/sha256/w",
                                 root + "/.stfs/f32/w",
                                 root + "/.stfs/slice/w/:,::" + std::to_string(2 + number % 1000),
                                 root + "/.stfs/merged.safetensors"};
    const std::string& path = paths[number % std::size(paths)];
    int started[2];
    ASSERT_EQ(::pipe2(started, O_CLOEXEC), 0);
    const pid_t reader = ::fork();
    if (reader == 0) {  // async-signal-safe calls only
      static char buffer[1 << 20];
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (::write(started[1], "x", 1) != 1 || fd < 0) ::_exit(1);
      for (;;) {
        if (::read(fd, buffer, sizeof buffer) <= 0 && ::lseek(fd, 0, SEEK_SET) < 0) ::_exit(1);
      }
    }
    char byte = 0;
    EXPECT_EQ(::read(started[0], &byte, 1), 1);
    ::kill(reader, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(reader, &status, 0), reader);
    EXPECT_TRUE(WIFSIGNALED(status)) << path;
    ::close(started[0]);
    ::close(started[1]);
  };
  for (std::uint64_t i = 0; i < 60; ++i) round(i);  // warms up threads and buffers that stay
  const pid_t daemon = mount.daemon();
  const DaemonFigures before(daemon);

  for (std::uint64_t i = 0; i < long_or(10'000, 120) && !HasFailure(); ++i) round(i);

  EXPECT_TRUE(eventually([&] { return DaemonFigures(daemon).descriptors <= before.descriptors; }));
  EXPECT_TRUE(eventually([&] { return DaemonFigures(daemon).threads <= before.threads + 8; }))
      << DaemonFigures(daemon).threads << " threads, before " << before.threads;
#ifndef STFS_SANITIZED
  EXPECT_LT(DaemonFigures(daemon).resident, before.resident + (48 << 20));
#endif
  EXPECT_EQ(names_in(root), std::vector<std::string>{"w"});
  EXPECT_EQ(run({STFS_BINARY, "-u", root}).status, 0);
}

// libfuse keeps such an interrupt until the next request; LeakSanitizer sees the last one.
TEST_F(InterruptedReaders, OfRequestsThatAreAnsweredLeaveNothingBehind) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "U8", {100'000})});
  const std::filesystem::path mountpoint = dir / "mnt";
  std::filesystem::create_directory(mountpoint);
  std::vector<std::string> environment = sanitizer_options("verify_asan_link_order=0");
  environment.push_back("LD_PRELOAD=" STFS_LATE_INTERRUPTS);
  Process process({STFS_BINARY, "-f", "-o", "threads=1", dir / "m.safetensors", mountpoint},
                  {.environment = environment});
  ASSERT_TRUE(eventually([&] { return !mounts_at(mountpoint).empty(); }));
  EXPECT_EQ(read_file(mountpoint / "w").size(), 100'000u);
  process.signal(SIGTERM);
  const Outcome result = process.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace stfs::test
