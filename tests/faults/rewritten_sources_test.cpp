// A source that is rewritten in place with the same size and mtime, as by cp -p, and operations
// that change only its ctime and no byte: links, renames, modes, owners, attributes and backups.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::size_t kTensorBytes = 8 << 20;  // size of the tensor w
constexpr std::size_t kReadSize = 4096;

std::string errno_name(int error) { return error == 0 ? "" : std::strerror(error); }

// Opens a file for reading. Returns 0 or the errno.
int error_of_open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

class RewrittenSource : public MountTest {
 protected:
  RewrittenSource() : source_(dir_ / "a.safetensors"), other_(dir_ / "b.safetensors") {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    write_safetensors(source_, {w_, random_tensor("v", "U8", {100}, 2)});
    write_safetensors(
        other_, {random_tensor("w", "U8", {kTensorBytes}, 3), random_tensor("v", "U8", {100}, 4)});
    for (const auto& path : {source_, other_}) set_mtime(path);
  }
  ~RewrittenSource() override { mount_.reset(); }

  static void set_mtime(const std::filesystem::path& path) {
    const timespec times[] = {{0, UTIME_OMIT}, {1'700'000'000, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void rewrite() const { EXPECT_EQ(run({"cp", "-p", other_, source_}).status, 0); }

  // Runs `stfs -f SOURCE` with or without a lease.
  void mount(bool with_lease, const std::vector<std::string>& options = {},
             const std::filesystem::path& source = {}) {
    const auto start = [&] {
      mount_ = std::make_unique<ForegroundMount>(
          std::vector<std::string>{source.empty() ? source_ : source}, options);
    };
    if (with_lease) return start();
    for (const auto& path : {source_, other_}) {
      ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    }
    std::thread([&] {  // its child processes lack CAP_LEASE
      ASSERT_EQ(::prctl(PR_CAPBSET_DROP, CAP_LEASE), 0);
      start();
    })
        .join();
  }
  std::filesystem::path at(std::string_view path) const { return *mount_ / path; }

  pid_t worker() const {
    pid_t worker = -1;
    EXPECT_TRUE(eventually([&] {
      for (const pid_t pid : processes_with(mount_->path())) {
        if (pid != mount_->process().pid()) worker = pid;
      }
      return worker > 0;
    }));
    return worker;
  }
  static void kill(pid_t worker) {
    if (worker > 0) ::kill(worker, SIGKILL);
    EXPECT_TRUE(eventually([&] { return has_ended(worker); }));
  }

  // Reads the tensor w page by page from a file that was open before the rewrite.
  void expect_old_bytes_or_estale(int fd, int least_failures) const {
    std::string page(kReadSize, '\0');
    int failures = 0;
    for (std::size_t offset = 0; offset < kTensorBytes && !HasFailure(); offset += kReadSize) {
      const ssize_t got = ::pread(fd, page.data(), kReadSize, static_cast<off_t>(offset));
      if (got < 0) {
        EXPECT_EQ(errno, ESTALE) << offset;
        ++failures;
      } else {
        EXPECT_TRUE(page == w_.bytes.substr(offset, kReadSize)) << "other bytes at " << offset;
      }
    }
    EXPECT_GE(failures, least_failures);
  }
  void expect_stale() const {
    EXPECT_EQ(errno_name(error_of_open(at("w"))), errno_name(ESTALE));
    EXPECT_EQ(errno_name(error_of_open(at("v"))), errno_name(ESTALE));
    EXPECT_NE(run({"cat", at(".stfs/sha256/w")}).status, 0);
    EXPECT_NE(run({"cat", at(".stfs/stats/w.json")}).status, 0);
    const Outcome listed = run({STFS_INFO_BINARY, "list", mount_->path()});
    EXPECT_EQ(listed.status, 3) << listed.out;
    EXPECT_NE(listed.err.find("has changed since it was mounted"), std::string::npos) << listed.err;
  }
  void expect_good(const std::string& after = "") const {
    EXPECT_EQ(errno_name(error_of_open(at("v"))), "") << after;
    std::string page(kReadSize, '\0');
    EXPECT_EQ(errno_name(read_range(at("w"), 0, kReadSize, page)), "") << after;
    EXPECT_TRUE(page == w_.bytes.substr(0, kReadSize)) << after;
  }
  // Expects that the mount is accepted as a source. Its version must match the current file.
  void expect_good_source(const std::string& after = "") const {
    const Outcome listed = run({STFS_INFO_BINARY, "list", mount_->path()});
    EXPECT_EQ(listed.status, 0) << after << ": " << listed.err;
  }

  TempDir dir_;
  Tensor w_ = random_tensor("w", "U8", {kTensorBytes}, 1);
  std::filesystem::path source_, other_;
  std::unique_ptr<ForegroundMount> mount_;
};

// Runs with a lease and without, and with each setting of cache=.
class RewrittenSourceVariants
    : public RewrittenSource,
      public ::testing::WithParamInterface<std::tuple<bool, const char*>> {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!std::get<0>(GetParam()) && ::geteuid() != 0)
      GTEST_SKIP() << "needs root to chown the source";
  }
  void mount_it() {
    mount(std::get<0>(GetParam()), {"-o", std::string("cache=") + std::get<1>(GetParam())});
  }
};

INSTANTIATE_TEST_SUITE_P(All, RewrittenSourceVariants,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values("kernel", "direct")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "Leased_" : "Unleased_") +
                                  std::get<1>(test.param);
                         });

TEST_P(RewrittenSourceVariants, RestoredMtimeStillGivesESTALE) {
  mount_it();
  const int fd = ::open(at("w").c_str(), O_RDONLY | O_CLOEXEC);
  std::string page(kReadSize, '\0');
  ASSERT_EQ(::pread(fd, page.data(), kReadSize, 0), static_cast<ssize_t>(kReadSize));

  rewrite();

  expect_old_bytes_or_estale(fd, 1000);
  ::close(fd);
  expect_stale();
}

TEST_P(RewrittenSourceVariants, RewriteBeforeFirstReadGivesESTALE) {
  mount_it();

  rewrite();

  expect_stale();
}

TEST_P(RewrittenSourceVariants, RewriteAfterLinkGivesESTALE) {
  mount_it();
  ASSERT_EQ(::link(source_.c_str(), (dir_ / "link").c_str()), 0);
  expect_good();

  rewrite();

  expect_stale();
}

TEST_P(RewrittenSourceVariants, RewriteByStillOpenWriterGivesESTALE) {
  mount_it();
  const int writer = ::open(source_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  expect_good("an open");

  EXPECT_EQ(::pwrite(writer, "other", 5, 4096), 5);
  set_mtime(source_);

  expect_stale();
  ::close(writer);
}

// Runs each command and reads after it.
TEST_P(RewrittenSourceVariants, LinkRenameChmodOrChownIsNotAChange) {
  mount_it();
  for (const char* const command :
       {"ln a.safetensors c", "rm c", "cp -al a.safetensors backup", "rm backup",
        "mv a.safetensors c", "mv c a.safetensors", "chmod 600 a.safetensors",
        "chmod 644 a.safetensors", "chown 1 a.safetensors", "chgrp 1 a.safetensors",
        "cp -a a.safetensors c", "tar cf backup.tar a.safetensors", "mv a.safetensors d",
        "ln d a.safetensors", "rm d", "rm a.safetensors"}) {
    ASSERT_EQ(sh("cd \"$1\" && " + std::string(command), {dir_.path()}).status, 0) << command;
    expect_good(command);
    if (std::filesystem::exists(source_)) expect_good_source(command);
  }
}

// Only a lease can distinguish these changes from a rewrite. Readers run at the same time.
TEST_F(RewrittenSource, MetadataChangeUnderLeaseIsNotAChange) {
  mount(true, {"-o", "page_cache=direct"});
  std::atomic<bool> stop = false;
  std::atomic<int> errors = 0;
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < 4; ++i) {
    readers.emplace_back([&, i] {
      std::string page(kReadSize, '\0');
      while (!stop) {
        const int error = read_range(at("w"), i * kReadSize, kReadSize, page);
        if (error != 0 || page != w_.bytes.substr(i * kReadSize, kReadSize)) ++errors;
      }
    });
  }
  for (const char* const command :
       {"ln a.safetensors c; rm c", "touch -a a.safetensors", "touch -a -d @1 a.safetensors",
        "touch -r a.safetensors -c a.safetensors", "mv a.safetensors c; mv c a.safetensors",
        "chmod 600 a.safetensors; chmod 644 a.safetensors",
        "tar --atime-preserve=replace -cf backup.tar a.safetensors",
        "command -v setfattr >/dev/null || exit 0; setfattr -n user.a -v b a.safetensors"}) {
    for (int i = 0; i < 10 && errors == 0; ++i) {
      const Outcome done = sh("cd \"$1\"; " + std::string(command), {dir_.path()});
      ASSERT_EQ(done.status, 0) << command << done.err;
    }
    EXPECT_EQ(errors, 0) << command;
    expect_good(command);
    expect_good_source(command);
    if (HasFailure()) break;
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  rewrite();
  expect_stale();
}

TEST_F(RewrittenSource, LinkedSourceGetsNewTokenAndStaysGood) {
  mount(true);
  const auto token = [&] { return xattr(at("w"), "user.stfs.version").value_or(""); };
  const auto root = [&] { return xattr(mount_->path(), "user.stfs.mount").value_or(""); };
  const std::string before = token();
  const std::string root_before = root();

  ASSERT_EQ(::link(source_.c_str(), (dir_ / "link").c_str()), 0);

  EXPECT_NE(token(), before);
  EXPECT_NE(root(), root_before);
  EXPECT_EQ(token(), xattr(Mounted({source_}) / "w", "user.stfs.version"));
  expect_good_source();
  const Mounted of_mount({mount_->path()});
  EXPECT_TRUE(read_file(of_mount / "w") == w_.bytes);
}

// A tool names the mount while a program makes links to its source.
TEST_F(RewrittenSource, ContinuouslyLinkedSourceStaysGood) {
  mount(true);
  Process linker(
      {"/bin/bash", "-c", "for i in {1..50000}; do ln \"$1\" \"$1.$i\"; done", "bash", source_});
  EXPECT_TRUE(eventually([&] { return std::filesystem::hard_link_count(source_) > 1; }));

  for (int i = 0; i < 20 && !HasFailure(); ++i) expect_good_source();

  linker.signal(SIGKILL);
  expect_good();
}

class RewrittenSupervisedSource : public RewrittenSource,
                                  public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!GetParam() && ::geteuid() != 0) GTEST_SKIP() << "needs root to chown the source";
  }
  void mount_it() { mount(GetParam(), {"-o", "supervise,page_cache=direct"}); }
};

INSTANTIATE_TEST_SUITE_P(All, RewrittenSupervisedSource, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "Leased" : "Unleased");
});

TEST_P(RewrittenSupervisedSource, RewriteUnreadUntilWorkerDiesGivesESTALE) {
  mount_it();
  expect_good();

  rewrite();
  kill(worker());

  expect_stale();
}

TEST_P(RewrittenSupervisedSource, RewriteWhileWorkerDiesGivesESTALE) {
  mount_it();
  expect_good();
  const pid_t stopped = worker();
  ::kill(stopped, SIGSTOP);
  Process writer({"cp", "-p", other_, source_});  // waits for the lease of the stopped worker

  kill(stopped);

  EXPECT_EQ(writer.wait().status, 0);
  expect_stale();
}

TEST_P(RewrittenSupervisedSource, LinkSeenByEarlierWorkerIsNotAChange) {
  mount_it();
  ASSERT_EQ(::link(source_.c_str(), (dir_ / "link").c_str()), 0);
  expect_good("a link");
  kill(worker());
  expect_good("another worker");
  const std::string token = xattr(at("w"), "user.stfs.version").value_or("");
  kill(worker());
  EXPECT_EQ(xattr(at("w"), "user.stfs.version"), token);
  expect_good_source();

  rewrite();

  expect_stale();
}

TEST_P(RewrittenSupervisedSource, LinkBetweenWorkersIsNotAChange) {
  mount_it();
  expect_good();
  const pid_t stopped = worker();
  ::kill(stopped, SIGSTOP);
  ASSERT_EQ(::link(source_.c_str(), (dir_ / "link").c_str()), 0);

  kill(stopped);

  expect_good();
  expect_good_source();
}

// The source is on FUSE, where stfs cannot take leases, as on NFS and overlayfs.
class RewrittenFuseSource : public RewrittenSource,
                            public ::testing::WithParamInterface<const char*> {
 protected:
  void mount_it() {
    std::filesystem::create_directory(dir_ / "files");
    for (std::filesystem::path* const path : {&source_, &other_}) {
      const std::filesystem::path to = dir_ / "files" / path->filename();
      std::filesystem::rename(*path, to);
      *path = to;
    }
    disk_ = std::make_unique<FaultyDisk>(dir_ / "files", GetParam());
    mount(true, {"-o", "page_cache=direct"}, *disk_ / "a.safetensors");
  }
  void TearDown() override { mount_.reset(); }

  std::unique_ptr<FaultyDisk> disk_;
};

INSTANTIATE_TEST_SUITE_P(All, RewrittenFuseSource,
                         ::testing::Values("uncached", "attributes", "all"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(RewrittenFuseSource, RewriteGivesESTALE) {
  mount_it();
  expect_good();

  rewrite();

  EXPECT_EQ(errno_name(error_of_open(at("w"))), errno_name(ESTALE));
  std::string page;
  EXPECT_EQ(errno_name(read_range(at("v"), 0, 1, page)), errno_name(ESTALE));
}

TEST_P(RewrittenFuseSource, LinkOrChmodIsNotAChange) {
  mount_it();

  ASSERT_EQ(::link(source_.c_str(), (dir_ / "files/link").c_str()), 0);
  expect_good("a link");
  ASSERT_EQ(::unlink((dir_ / "files/link").c_str()), 0);
  expect_good("an unlink");
  ASSERT_EQ(::chmod(source_.c_str(), 0640), 0);
  expect_good("a chmod");
  ASSERT_EQ(::chmod(other_.c_str(), 0640), 0);  // so that the rewrite keeps the mode
  rewrite();

  EXPECT_EQ(errno_name(error_of_open(at("w"))), errno_name(ESTALE));
}

// The ctime on this file system is the time of the stat(2).
TEST_F(RewrittenSource, MeaninglessCtimeFallsBackToMtime) {
  std::filesystem::create_directory(dir_ / "files");
  std::filesystem::rename(source_, dir_ / "files/a.safetensors");
  const FaultyDisk disk(dir_ / "files", "clock");
  mount(true, {"-o", "page_cache=direct"}, disk / "a.safetensors");

  expect_good("another ctime");
  expect_good_source();
  write_file(dir_ / "files/a.safetensors", read_file(other_));

  EXPECT_EQ(errno_name(error_of_open(at("w"))), errno_name(ESTALE));
  mount_.reset();
}

// stfs-info takes no lease. The disk stalls its read while the file is rewritten.
TEST_F(RewrittenSource, RewriteFailsReadingTool) {
  const std::vector<std::string> commands[] = {
      {STFS_INFO_BINARY, "hash", "SOURCE", "w"},
      {STFS_INFO_BINARY, "stats", "SOURCE", "w"},
      {STFS_INFO_BINARY, "cat", "SOURCE", "w"},
  };
  std::filesystem::create_directory(dir_ / "files");
  const std::string bytes = read_file(source_);
  source_ = dir_ / "files/a.safetensors";
  for (std::vector<std::string> command : commands) {
    write_file(source_, bytes);
    set_mtime(source_);
    const FaultyDisk disk(dir_ / "files", "attributes");
    command[2] = disk / "a.safetensors";
    disk.fail_or_stall("stall", "a.safetensors", kTensorBytes / 2, kTensorBytes / 2 + kReadSize);
    Process tool(command);
    EXPECT_TRUE(disk.stalls(1)) << command[1];

    rewrite();
    disk.tell("release");

    const Outcome ended = tool.wait();
    EXPECT_EQ(ended.status, 3) << command[1] << ": " << ended.out.substr(0, 200) << ended.err;
  }
}

TEST_F(RewrittenSource, RewriteFailsReadingEditAndIsNamed) {
  std::filesystem::create_directory(dir_ / "files");
  std::filesystem::create_directory(dir_ / "out");
  const std::string bytes = read_file(source_), base = dir_ / "base.safetensors";
  write_safetensors(base, {random_tensor("b", "U8", {100}, 5)});
  source_ = dir_ / "files/a.safetensors";
  for (const char* const out : {"new.safetensors", "directory"}) {
    for (const bool is_base : {true, false}) {
      write_file(source_, bytes);
      set_mtime(source_);
      const FaultyDisk disk(dir_ / "files", "attributes");
      const std::string read = disk / "a.safetensors";
      disk.fail_or_stall("stall", "a.safetensors", kTensorBytes / 2, kTensorBytes / 2 + kReadSize);
      Process edit({STFS_INFO_BINARY, "edit", is_base ? read : base, "-e",
                    is_base ? "drop v" : "add " + read + "::w", "-o", dir_ / "out" / out});
      EXPECT_TRUE(disk.stalls(1));

      rewrite();
      disk.tell("release");

      const Outcome ended = edit.wait();
      EXPECT_EQ(ended.status, 3);
      EXPECT_NE(ended.err.find(read + ": changed while it was open"), std::string::npos)
          << ended.err;
      EXPECT_EQ(names_in(dir_ / "out"), std::vector<std::string>());
    }
  }
}

}  // namespace
}  // namespace stfs::test
