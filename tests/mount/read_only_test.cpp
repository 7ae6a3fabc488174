// Every change fails with EROFS.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <string>

namespace stfs::test {
namespace {

struct Change {
  const char* name;
  std::function<int(const std::string& root)> act;  // returns as the system call does
};

int opened(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd >= 0) ::close(fd);
  return fd;
}

const Change kChanges[] = {
    {"OpenForWriting", [](auto& r) { return opened(r + "/w", O_WRONLY); }},
    {"OpenForReadingAndWriting", [](auto& r) { return opened(r + "/w", O_RDWR); }},
    {"OpenForAppending", [](auto& r) { return opened(r + "/w", O_WRONLY | O_APPEND); }},
    {"OpenWithTruncation", [](auto& r) { return opened(r + "/w", O_WRONLY | O_TRUNC); }},
    {"OpenWithCreation", [](auto& r) { return opened(r + "/new", O_WRONLY | O_CREAT); }},
    {"OpenExclusively", [](auto& r) { return opened(r + "/new", O_RDWR | O_CREAT | O_EXCL); }},
    {"Create", [](auto& r) { return ::creat((r + "/new").c_str(), 0644); }},
    {"CreateInDirectory", [](auto& r) { return ::creat((r + "/d/new").c_str(), 0644); }},
    {"CreateInDotStfs", [](auto& r) { return ::creat((r + "/.stfs/new").c_str(), 0644); }},
    {"Truncate", [](auto& r) { return ::truncate((r + "/w").c_str(), 0); }},
    {"Unlink", [](auto& r) { return ::unlink((r + "/w").c_str()); }},
    {"UnlinkInDotStfs", [](auto& r) { return ::unlink((r + "/.stfs/info.json").c_str()); }},
    {"Rename", [](auto& r) { return ::rename((r + "/w").c_str(), (r + "/new").c_str()); }},
    {"RenameOver", [](auto& r) { return ::rename((r + "/w").c_str(), (r + "/d/x").c_str()); }},
    {"RenameDirectory", [](auto& r) { return ::rename((r + "/d").c_str(), (r + "/e").c_str()); }},
    {"Mkdir", [](auto& r) { return ::mkdir((r + "/new").c_str(), 0755); }},
    {"Rmdir", [](auto& r) { return ::rmdir((r + "/d").c_str()); }},
    {"Symlink", [](auto& r) { return ::symlink("w", (r + "/new").c_str()); }},
    {"Link", [](auto& r) { return ::link((r + "/w").c_str(), (r + "/new").c_str()); }},
    {"Chmod", [](auto& r) { return ::chmod((r + "/w").c_str(), 0644); }},
    {"ChmodOfTheRoot", [](auto& r) { return ::chmod(r.c_str(), 0755); }},
    {"Chown", [](auto& r) { return ::chown((r + "/w").c_str(), ::geteuid(), ::getegid()); }},
    {"Lchown", [](auto& r) { return ::lchown((r + "/w").c_str(), ::geteuid(), ::getegid()); }},
    {"Utimensat", [](auto& r) { return ::utimensat(AT_FDCWD, (r + "/w").c_str(), nullptr, 0); }},
    {"Setxattr", [](auto& r) { return ::setxattr((r + "/w").c_str(), "user.new", "v", 1, 0); }},
    {"SetxattrOfOurs",
     [](auto& r) { return ::setxattr((r + "/w").c_str(), "user.stfs.name", "v", 1, 0); }},
    {"Removexattr", [](auto& r) { return ::removexattr((r + "/w").c_str(), "user.stfs.name"); }},
    {"MknodFile", [](auto& r) { return ::mknod((r + "/new").c_str(), S_IFREG | 0644, 0); }},
    {"MknodFifo", [](auto& r) { return ::mkfifo((r + "/new").c_str(), 0644); }},
    {"TemporaryFile", [](auto& r) { return opened(r, O_TMPFILE | O_RDWR); }},
};

class ReadOnly : public MountTest, public ::testing::WithParamInterface<Change> {
 protected:
  static std::vector<Tensor> tensors() {
    return {random_tensor("w", "U8", {100}), random_tensor("d/x", "U8", {10})};
  }
};

TEST_P(ReadOnly, IsRefusedWithEROFSAndChangesNothing) {
  const TempDir dir;
  const std::vector<Tensor> before = tensors();
  write_safetensors(dir / "m.safetensors", before);
  const std::string source = read_file(dir / "m.safetensors");
  const Mounted mount({dir / "m.safetensors"});

  errno = 0;
  const int result = GetParam().act(mount.path());
  const int error = errno;

  EXPECT_EQ(result, -1);
  EXPECT_EQ(error, EROFS);
  EXPECT_EQ(read_file(mount / "w"), before[0].bytes);
  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"d", "w"}));
  EXPECT_EQ(read_file(dir / "m.safetensors"), source);
}

INSTANTIATE_TEST_SUITE_P(Change, ReadOnly, ::testing::ValuesIn(kChanges),
                         [](const auto& test) { return std::string(test.param.name); });

class ReadOnlyMount : public MountTest {};

TEST_F(ReadOnlyMount, TheShellSaysReadOnlyFileSystem) {
  const Mounted mount({test_data("sharded")});

  const Outcome echo = sh(R"(echo x > "$1")", {mount / "float32_3"}, {.environment = {"LC_ALL=C"}});

  EXPECT_NE(echo.status, 0);
  EXPECT_NE(echo.err.find("Read-only file system"), std::string::npos) << echo.err;
}

TEST_F(ReadOnlyMount, TheOptionRwHasNoEffect) {
  const Mounted mount({test_data("sharded")}, {"-o", "rw"});

  EXPECT_EQ(opened(mount / "float32_3", O_WRONLY), -1);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(ReadOnlyMount, ARemountReadWriteByRootDoesNotMakeItWritable) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can remount";
  const Mounted mount({test_data("sharded")});

  // The system call lifts the kernel's read-only flag, which mount(8) would not: stfs itself
  // refuses.
  ::mount("", mount.path().c_str(), "", MS_REMOUNT | MS_NOSUID | MS_NODEV, nullptr);

  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC}) {
    EXPECT_EQ(opened(mount / "float32_3", flags), -1);
    EXPECT_EQ(errno, EROFS) << flags;
  }
  EXPECT_EQ(opened(mount / "new", O_WRONLY | O_CREAT), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::unlink((mount / "float32_3").c_str()), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::truncate((mount / "float32_3").c_str(), 1), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(::setxattr((mount / "float32_3").c_str(), "user.x", "v", 1, 0), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(read_file(mount / "float32_3").size(), 12u);
}

}  // namespace
}  // namespace stfs::test
