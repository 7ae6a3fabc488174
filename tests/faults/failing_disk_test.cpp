// A source on a disk that fails in some ranges, stalls, or is slow. An error affects only its
// range, and a slow read delays no other read.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSize = 4 << 20;  // bytes of the tensor with the faults

class SourceOnFaultyDisk : public MountTest {
 protected:
  SourceOnFaultyDisk()
      : w_(random_tensor("w", "BF16", {kSize / 2}, 1)), v_(random_tensor("v", "U8", {kSize}, 2)) {
    std::filesystem::create_directory(dir_ / "files");
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    source_ = dir_ / "files/m.safetensors";
    write_safetensors(source_, {w_, v_});
    offset_ = entries_of(source_).at("w").offset;
  }
  void SetUp() override {
    MountTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) disk_ = std::make_unique<FaultyDisk>(dir_ / "files");
  }

  // Makes reads of the bytes [begin, end) of tensor w fail or stall.
  void spoil(const char* verb, std::size_t begin, std::size_t end) const {
    disk_->fail_or_stall(verb, "m.safetensors", offset_ + begin, offset_ + end);
  }
  // Reads the file in pieces of `length`. Only pieces on unreadable pages may fail.
  void expect_error_in(const std::filesystem::path& file, const std::string& bytes,
                       std::size_t begin, std::size_t end, std::size_t length) {
    std::string got;
    std::size_t errors = 0;
    for (std::size_t at = 0; at < bytes.size(); at += length) {
      const std::size_t take = std::min(length, bytes.size() - at);
      const int error = read_range(file, at, take, got);
      // Whole pages of the disk fail, and the tensor does not begin at a page.
      const bool must_fail = at < end && begin < at + take;
      const bool may_fail = at < end + 2 * kPage && begin < at + take + 2 * kPage;
      errors += error != 0 ? 1 : 0;
      if (must_fail) {
        EXPECT_EQ(error, EIO) << file << " at " << at;
      }
      if (!may_fail) {
        EXPECT_EQ(error, 0) << file << " at " << at;
      }
      if (error == 0) {
        EXPECT_TRUE(got == bytes.substr(at, take)) << file << " at " << at;
      }
      if (HasFailure()) return;
    }
    EXPECT_GT(errors, 0u);
  }

  TempDir dir_;
  Tensor w_, v_;
  std::filesystem::path source_;  // on the faulty disk
  std::size_t offset_ = 0;        // offset of tensor w in source_
  std::unique_ptr<FaultyDisk> disk_;
};

class FailingDisk : public SourceOnFaultyDisk, public ::testing::WithParamInterface<const char*> {
 protected:
  static std::vector<std::string> options() { return {"-o", std::string("cache=") + GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(Cache, FailingDisk, ::testing::Values("kernel", "direct"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(FailingDisk, FailedRangeGivesEIOOnlyThere) {
  const Mounted mount({*disk_ / "m.safetensors"}, options());
  const std::size_t bad = 1 << 20;
  spoil("fail", bad, bad + kPage);
  std::string floats;
  for (std::size_t i = 0; i < w_.bytes.size(); i += 2)
    floats += std::string(2, '\0') + w_.bytes.substr(i, 2);

  expect_error_in(mount / "w", w_.bytes, bad, bad + kPage, kPage);
  expect_error_in(mount / ".stfs/slice/w/0:2000000", w_.bytes.substr(0, 4'000'000), bad,
                  bad + kPage, kPage);
  expect_error_in(mount / ".stfs/f32/w", floats, 2 * bad, 2 * (bad + kPage), 2 * kPage);
  EXPECT_TRUE(read_file(mount / "v") == v_.bytes);
  EXPECT_EQ(run({"cat", mount / ".stfs/sha256/w"}).status, 1);
  EXPECT_EQ(run({"cat", mount / ".stfs/sha256/v"}).status, 0);
  EXPECT_EQ(run({"cat", mount / ".stfs/stats/w.json"}).status, 1);
  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"v", "w"}));
}

// Ends a mount and returns its log, line by line.
std::vector<std::string> log_of(ForegroundMount& mount) {
  mount.process().signal(SIGTERM);
  std::istringstream text(mount.process().wait().err);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST_P(FailingDisk, EachFailedRangeIsLoggedOnceForAllViews) {
  ForegroundMount mount({*disk_ / "m.safetensors"}, options());
  const std::size_t bad = 1 << 20;
  spoil("fail", bad, bad + kPage);
  std::string got;

  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(read_range(mount / "w", bad, kPage, got), EIO);
    EXPECT_EQ(read_range(mount / ".stfs/f32/w", 2 * bad, kPage, got), EIO);
    EXPECT_EQ(read_range(mount / ".stfs/slice/w/::2", bad / 2, kPage, got), EIO);
    EXPECT_NE(run({"cat", mount / ".stfs/merged.safetensors"}).status, 0);
    EXPECT_NE(run({"cat", mount / ".stfs/sha256/w"}).status, 0);
    EXPECT_NE(run({"cat", mount / ".stfs/stats/w.json"}).status, 0);
  }
  const std::size_t other = entries_of(source_).at("v").offset + 3 * bad;
  disk_->fail_or_stall("fail", "m.safetensors", other, other + 1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(read_range(mount / "v", 3 * bad, kPage, got), EIO);

  const std::vector<std::string> log = log_of(mount);
  ASSERT_EQ(log.size(), 2U) << testing::PrintToString(log);
  const std::size_t begins[] = {offset_ + bad, other};
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_TRUE(log[i].starts_with("stfs: " + (*disk_ / "m.safetensors").string() + ": "))
        << log[i];
    EXPECT_NE(log[i].find("Input/output error"), std::string::npos) << log[i];
    std::size_t begin = 0;
    std::size_t end = 0;
    const std::size_t range = log[i].find("bytes ");
    ASSERT_NE(range, std::string::npos) << log[i];
    ASSERT_EQ(std::sscanf(log[i].c_str() + range, "bytes %zu to %zu", &begin, &end), 2) << log[i];
    EXPECT_LT(begin, begins[i] + kPage) << log[i];
    EXPECT_GT(end, begins[i]) << log[i];
    EXPECT_GE(begin + kPage, begins[i]) << log[i] << ": not the failing range";
  }
}

TEST_P(FailingDisk, LostDiskIsLoggedOnce) {
  ForegroundMount mount({*disk_ / "m.safetensors"}, options());
  disk_->die();
  std::string got;

  for (int i = 0; i < 10; ++i) EXPECT_EQ(read_range(mount / "w", 0, kPage, got), ENOTCONN);

  const std::vector<std::string> log = log_of(mount);
  ASSERT_EQ(log.size(), 1U) << testing::PrintToString(log);
  EXPECT_NE(log[0].find("Transport endpoint is not connected"), std::string::npos) << log[0];
}

TEST_P(FailingDisk, NextWorkerDoesNotRepeatLogLine) {
  std::vector<std::string> supervised = options();
  supervised.insert(supervised.end(), {"-o", "supervise"});
  ForegroundMount mount({*disk_ / "m.safetensors"}, supervised);
  const std::size_t bad = 1 << 20;
  spoil("fail", bad, bad + kPage);
  std::string got;
  EXPECT_EQ(read_range(mount / "w", bad, kPage, got), EIO);

  for (const pid_t pid : processes_with(mount.path())) {
    if (pid != mount.process().pid()) ::kill(pid, SIGKILL);
  }
  EXPECT_EQ(read_range(mount / "w", bad, kPage, got), EIO);

  int lines = 0;
  for (const std::string& line : log_of(mount)) {
    lines += line.find("Input/output error") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(lines, 1);
}

TEST_P(FailingDisk, NextWorkerLogsOtherFailedRange) {
  std::vector<std::string> supervised = options();
  supervised.insert(supervised.end(), {"-o", "supervise"});
  ForegroundMount mount({*disk_ / "m.safetensors"}, supervised);
  const std::size_t bad = 1 << 20;
  spoil("fail", bad, bad + kPage);
  const std::size_t other = entries_of(source_).at("v").offset + 3 * bad;
  disk_->fail_or_stall("fail", "m.safetensors", other, other + 1);
  std::string got;
  EXPECT_EQ(read_range(mount / "w", bad, kPage, got), EIO);

  for (const pid_t pid : processes_with(mount.path())) {
    if (pid != mount.process().pid()) ::kill(pid, SIGKILL);
  }
  EXPECT_EQ(read_range(mount / "v", 3 * bad, kPage, got), EIO);
  EXPECT_EQ(read_range(mount / "w", bad, kPage, got), EIO);

  int lines = 0;
  for (const std::string& line : log_of(mount)) {
    lines += line.find("Input/output error") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(lines, 2);
}

TEST_P(FailingDisk, StalledReadDelaysNoOtherReader) {
  const Mounted mount({*disk_ / "m.safetensors"}, options());
  spoil("stall", 1 << 20, 3 << 20);
  constexpr int kWaiting = 8;
  std::vector<std::thread> waiting;
  std::atomic<int> right = 0;
  for (int i = 0; i < kWaiting; ++i) {
    waiting.emplace_back([&, i] {
      std::string got;
      const std::size_t at = (1 << 20) + static_cast<std::size_t>(i) * 200'000;
      if (read_range(mount / "w", at, 50'000, got) == 0 && got == w_.bytes.substr(at, 50'000))
        ++right;
    });
  }

  EXPECT_TRUE(disk_->stalls(kWaiting / 2)) << "no reader waits for the disk";
  EXPECT_TRUE(read_file(mount / "v") == v_.bytes);
  std::string got;
  EXPECT_EQ(read_range(mount / "w", 0, 100'000, got), 0) << "a good range of the same tensor";
  EXPECT_TRUE(got == w_.bytes.substr(0, 100'000));
  EXPECT_FALSE(read_file(mount / ".stfs/tensors.json").empty());
  EXPECT_EQ(names_in(mount / ".stfs/f32"), std::vector<std::string>{"w"});
  EXPECT_EQ(right, 0);

  disk_->tell("release");
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(right, kWaiting);
}

TEST_P(FailingDisk, StalledMountCanBeUnmountedLazilyAndDaemonEnds) {
  Mounted mount({*disk_ / "m.safetensors"}, options());
  const pid_t daemon = mount.daemon();
  spoil("stall", 0, kSize);
  Process reader({"cat", mount / "w"});
  ASSERT_TRUE(disk_->stalls(1));

  EXPECT_EQ(run({STFS_BINARY, "-u", "-z", mount.path()}).status, 0);
  EXPECT_TRUE(mounts_at(mount.path()).empty());
  reader.signal(SIGKILL);
  disk_->tell("release");

  reader.wait();
  EXPECT_TRUE(eventually([&] { return ::kill(daemon, 0) != 0; })) << "the daemon did not end";
}

TEST_P(FailingDisk, SigtermUnmountsDespiteStalledRead) {
  ForegroundMount mount({*disk_ / "m.safetensors"}, options());
  spoil("stall", 0, kSize);
  Process reader({"cat", mount / "w"});
  ASSERT_TRUE(disk_->stalls(1));

  mount.process().signal(SIGTERM);

  EXPECT_TRUE(eventually([&] { return mounts_at(mount.path()).empty(); }));
  EXPECT_TRUE(mount.process().running()) << "the disk may still answer";
  disk_->tell("release");
  reader.wait();
  const Outcome ended = mount.process().wait();
  EXPECT_EQ(ended.status, 0) << ended.err;
}

TEST_P(FailingDisk, SlowDiskGivesRightBytes) {
  const Mounted mount({*disk_ / "m.safetensors"}, options());
  disk_->tell("slow 2");
  std::vector<std::thread> readers;
  std::atomic<int> right = 0;

  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&, i] {
      const Tensor& tensor = i % 2 == 0 ? v_ : w_;
      if (read_file(mount / tensor.name) == tensor.bytes) ++right;
    });
  }
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(right, 4);
}

// A caller with its disposition of SIGALRM, which the daemon uses to end in time.
struct Caller {
  const char* name;
  RunOptions caller;

  friend std::ostream& operator<<(std::ostream& out, const Caller& caller) {
    return out << caller.name;
  }
};
class StallingDisk : public SourceOnFaultyDisk, public ::testing::WithParamInterface<Caller> {};

INSTANTIATE_TEST_SUITE_P(Caller, StallingDisk,
                         ::testing::Values(Caller{"Shell", {}},
                                           Caller{"BlocksSigalrm",
                                                  {.ignored_signals = {SIGALRM},
                                                   .blocked_signals = {SIGALRM}}}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(StallingDisk, DoesNotKeepDaemonAlive) {
  ForegroundMount mount({*disk_ / "m.safetensors"}, {"-o", "page_cache=direct"}, GetParam().caller);
  spoil("stall", 0, kSize);
  Process reader({"cat", mount / "w"});
  ASSERT_TRUE(disk_->stalls(1));
  Process hasher({"cat", mount / ".stfs/sha256/v"});
  ASSERT_TRUE(disk_->stalls(2));

  mount.process().signal(SIGTERM);

  EXPECT_TRUE(eventually([&] { return mounts_at(mount.path()).empty(); }));
  const Outcome ended = mount.process().wait();  // takes 10 seconds
  EXPECT_FALSE(ended.timed_out);
  EXPECT_EQ(ended.status, 0);
  EXPECT_NE(ended.err.find("a source did not answer"), std::string::npos) << ended.err;
  disk_->tell("release");
  EXPECT_EQ(reader.wait().status, 1);
  EXPECT_EQ(hasher.wait().status, 1);
}

// The disk stalls the read while the file is rewritten, and then returns bytes of the new version.
TEST_P(FailingDisk, LatePageOfNewVersionIsReturnedToNoReader) {
  for (const char* path : {"w", ".stfs/f32/w", ".stfs/slice/w/::2", ".stfs/merged.safetensors"}) {
    write_safetensors(source_, {w_, v_});
    const Mounted mount({*disk_ / "m.safetensors"}, options());
    spoil("stall", 0, 2 * kSize);
    std::string got;
    int error = 0;
    std::thread reader([&] { error = read_range(mount / path, 1 << 20, kPage, got); });
    const bool stalled = disk_->stalls(1);

    write_safetensors(source_, {random_tensor("w", "BF16", {kSize / 2}, 3), v_});
    disk_->tell("release");
    reader.join();

    EXPECT_TRUE(stalled) << path;
    EXPECT_EQ(error, ESTALE) << path;
  }
}

TEST_F(SourceOnFaultyDisk, InterruptedExtractLeavesNoFile) {
  const std::filesystem::path out = dir_ / "out";
  std::filesystem::create_directory(out);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    spoil("stall", kSize / 2, kSize / 2 + kPage);
    Process extract({STFS_INFO_BINARY, "extract", "-o", out / "new.safetensors",
                     *disk_ / "m.safetensors", "*"});
    EXPECT_TRUE(disk_->stalls(1));

    extract.signal(number);

    EXPECT_EQ(extract.wait().status, 128 + number);
    EXPECT_EQ(names_in(out), std::vector<std::string>());
    disk_->tell("release");
    EXPECT_TRUE(eventually([&] { return disk_->waiting() == 0; }));
  }
}

TEST_F(SourceOnFaultyDisk, InterruptedOrFailedEditLeavesNoFile) {
  const std::filesystem::path out = dir_ / "out";
  std::filesystem::create_directory(out);
  const std::string source = *disk_ / "m.safetensors";
  const auto words = [&](const char* name) -> std::vector<std::string> {
    return {STFS_INFO_BINARY, "edit", source, "-e", "rename s/^/x./", "-o", out / name};
  };
  for (const char* const name : {"new.safetensors", "directory"}) {
    spoil("stall", kSize / 2, kSize / 2 + kPage);
    Process edit(words(name));
    EXPECT_TRUE(disk_->stalls(1));

    edit.signal(SIGTERM);

    EXPECT_EQ(edit.wait().status, 128 + SIGTERM);
    EXPECT_EQ(names_in(out), std::vector<std::string>()) << name;
    disk_->tell("release");
    EXPECT_TRUE(eventually([&] { return disk_->waiting() == 0; }));
  }
  spoil("fail", kSize / 2, kSize / 2 + kPage);
  for (const char* const name : {"new.safetensors", "directory"}) {
    const Outcome failed = run(words(name));
    EXPECT_EQ(failed.status, 3);
    EXPECT_NE(failed.err.find(source + ": Input/output error"), std::string::npos) << failed.err;
    EXPECT_EQ(names_in(out), std::vector<std::string>()) << name;
  }
}

// Like LatePageOfNewVersionIsReturnedToNoReader, but the mounting user cannot take leases and gets
// no information from mincore(2).
TEST_F(SourceOnFaultyDisk, LatePageOfNewVersionIsRefusedWithoutLease) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become nobody";
  if (run({"which", "setpriv"}).status != 0) GTEST_SKIP() << "no setpriv";
  struct stat64 helper = {};
  if (::stat64("/usr/bin/fusermount3", &helper) != 0 || (helper.st_mode & S_ISUID) == 0)
    GTEST_SKIP() << "no setuid fusermount3";
  std::filesystem::create_directory(dir_ / "nobodys");
  ASSERT_EQ(::chown((dir_ / "nobodys").c_str(), 65534, 65534), 0);
  std::filesystem::copy_file(STFS_BINARY, dir_ / "stfs");
  spoil("stall", 1 << 20, 2 << 20);
  // Runs in a mount namespace in which all users may open /dev/fuse. Prints the bytes that were
  // read.
  Process reader({"unshare", "-m", "/bin/bash", "-c", R"sh(
      set -e
      mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse
      nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
      nobody "$1/stfs" -o page_cache=direct "$2" "$1/nobodys"
      nobody dd if="$1/nobodys/w" bs=4096 skip=300 count=1 status=none || echo refused
      nobody "$1/stfs" -u -z "$1/nobodys")sh",
                  "sh", dir_.path(), *disk_ / "m.safetensors"});
  const bool stalled =
      eventually([&] { return !reader.running() || disk_->waiting() > 0; }) && reader.running();

  write_safetensors(source_, {random_tensor("w", "BF16", {kSize / 2}, 3), v_});
  disk_->tell("release");
  const Outcome read = reader.wait();

  EXPECT_TRUE(stalled);
  EXPECT_EQ(read.status, 0) << read.err;
  EXPECT_EQ(read.out, "refused\n") << read.err;
}

// A file system on a loop device. Its image is truncated while it is mounted.
TEST(TruncatedDisk, GivesEIOForTruncatedPartAndReadsOtherBytes) {
  const std::string reason = mount_unavailable();
  if (!reason.empty()) GTEST_SKIP() << "no mount is possible: " << reason;
  if (::geteuid() != 0) GTEST_SKIP() << "a loop device needs root";
  const TempDir dir;
  const struct Unmount {
    std::filesystem::path path;
    ~Unmount() { unmount_all(path); }
  } unmount_at_the_end{dir / "disk"};
  const Tensor first = random_tensor("first", "U8", {kSize}, 1);
  const Tensor last = random_tensor("last", "U8", {kSize}, 2);
  write_safetensors(dir / "m.safetensors", {first, last});
  const std::filesystem::path disk = dir / "disk";
  std::filesystem::create_directory(disk);
  const Outcome device = sh(R"sh(
      truncate -s 32M "$1/image" && mkfs.ext4 -q -b 4096 -O ^has_journal "$1/image"
      mount -o loop "$1/image" "$1/disk" && cp "$1/m.safetensors" "$1/disk/"
      umount "$1/disk" && mount -o loop,ro "$1/image" "$1/disk"
      filefrag -v -b4096 "$1/disk/m.safetensors" | tr -s '.:' ' ' | awk '$2 ~ /^[0-9]+$/ && $5 > last {last = $5} END {print last}')sh",
                            {dir.path()});
  if (device.status != 0) {
    unmount_all(disk);
    GTEST_SKIP() << "no loop device with ext4: " << device.err;
  }
  {
    const Mounted mount({disk / "m.safetensors"});
    // Truncate the image just before the file's last block on the disk.
    std::filesystem::resize_file(dir / "image", (std::stoull(device.out) - 255) * kPage);
    std::string got;
    std::size_t errors = 0;

    for (const Tensor& tensor : {first, last}) {
      for (std::size_t at = 0; at < kSize; at += kPage) {
        const std::size_t offset = entries_of(dir / "m.safetensors").at(tensor.name).offset;
        const int disk_error = read_range(disk / "m.safetensors", offset + at, kPage, got);
        const int error = read_range(mount / tensor.name, at, kPage, got);
        EXPECT_EQ(error, disk_error) << tensor.name << " at " << at;
        if (error != 0) {
          EXPECT_EQ(error, EIO) << tensor.name << " at " << at;
          ++errors;
        } else {
          EXPECT_TRUE(got == tensor.bytes.substr(at, kPage)) << tensor.name << " at " << at;
        }
      }
    }

    EXPECT_GE(errors, 255u);
    EXPECT_LT(errors, 2 * kSize / kPage) << "everything is lost";
    EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"first", "last"}));
  }
  unmount_all(disk);
}

}  // namespace
}  // namespace stfs::test
