// Every operation that changes a file system gives the same errno as on a read-only tmpfs, which is
// the oracle, and changes nothing even after root has remounted the mount read-write.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Path = std::string;

struct Operation {
  const char* name;
  std::function<int(const Path& root)> act;  // returns -1 and sets errno like a system call
};

int opened(const Path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd >= 0) ::close(fd);
  return fd;
}

// Calls `act` with a descriptor opened for reading.
template <class Act>
int on_open(const Path& path, const Act& act) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fd;
  const int result = static_cast<int>(act(fd));
  const int error = errno;
  ::close(fd);
  errno = error;
  return result;
}

int renamed(const Path& from, const Path& to, unsigned flags) {
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
}

const Operation kOperations[] = {
    {"open O_WRONLY", [](const Path& r) { return opened(r + "/w", O_WRONLY); }},
    {"open O_RDWR", [](const Path& r) { return opened(r + "/w", O_RDWR); }},
    {"open O_APPEND", [](const Path& r) { return opened(r + "/w", O_WRONLY | O_APPEND); }},
    {"open O_TRUNC", [](const Path& r) { return opened(r + "/w", O_WRONLY | O_TRUNC); }},
    {"open O_RDONLY O_TRUNC", [](const Path& r) { return opened(r + "/w", O_RDONLY | O_TRUNC); }},
    {"open O_CREAT", [](const Path& r) { return opened(r + "/new", O_WRONLY | O_CREAT); }},
    {"open O_CREAT of a file", [](const Path& r) { return opened(r + "/w", O_RDONLY | O_CREAT); }},
    {"open O_EXCL", [](const Path& r) { return opened(r + "/w", O_RDWR | O_CREAT | O_EXCL); }},
    {"open O_DIRECTORY O_RDWR", [](const Path& r) { return opened(r + "/d", O_RDWR); }},
    {"open O_TMPFILE", [](const Path& r) { return opened(r + "/d", O_TMPFILE | O_RDWR); }},
    {"truncate", [](const Path& r) { return ::truncate((r + "/w").c_str(), 1); }},
    {"truncate of a directory", [](const Path& r) { return ::truncate((r + "/d").c_str(), 1); }},
    {"truncate of nothing", [](const Path& r) { return ::truncate((r + "/new").c_str(), 1); }},
    {"ftruncate",
     [](const Path& r) { return on_open(r + "/w", [](int f) { return ::ftruncate(f, 1); }); }},
    {"write",
     [](const Path& r) { return on_open(r + "/w", [](int f) { return ::write(f, "x", 1); }); }},
    {"fallocate",
     [](const Path& r) {
       return on_open(r + "/w", [](int f) { return ::fallocate(f, 0, 0, 9); });
     }},
    {"unlink", [](const Path& r) { return ::unlink((r + "/w").c_str()); }},
    {"unlink of a directory", [](const Path& r) { return ::unlink((r + "/d").c_str()); }},
    {"unlink of nothing", [](const Path& r) { return ::unlink((r + "/new").c_str()); }},
    {"rmdir", [](const Path& r) { return ::rmdir((r + "/d").c_str()); }},
    {"rmdir of a file", [](const Path& r) { return ::rmdir((r + "/w").c_str()); }},
    {"rmdir of nothing", [](const Path& r) { return ::rmdir((r + "/new").c_str()); }},
    {"rename", [](const Path& r) { return renamed(r + "/w", r + "/new", 0); }},
    {"rename over", [](const Path& r) { return renamed(r + "/w", r + "/d/x", 0); }},
    {"rename of a directory", [](const Path& r) { return renamed(r + "/d", r + "/new", 0); }},
    {"rename of nothing", [](const Path& r) { return renamed(r + "/new", r + "/w", 0); }},
    {"rename from outside", [](const Path& r) { return renamed(r + ".outside", r + "/new", 0); }},
    {"rename to outside", [](const Path& r) { return renamed(r + "/w", r + ".gone", 0); }},
    {"rename exchange",
     [](const Path& r) { return renamed(r + "/w", r + "/d/x", RENAME_EXCHANGE); }},
    {"rename noreplace",
     [](const Path& r) { return renamed(r + "/w", r + "/new", RENAME_NOREPLACE); }},
    {"mkdir", [](const Path& r) { return ::mkdir((r + "/new").c_str(), 0755); }},
    {"mkdir of a directory", [](const Path& r) { return ::mkdir((r + "/d").c_str(), 0755); }},
    {"symlink", [](const Path& r) { return ::symlink("w", (r + "/new").c_str()); }},
    {"symlink over a file", [](const Path& r) { return ::symlink("w", (r + "/w").c_str()); }},
    {"link", [](const Path& r) { return ::link((r + "/w").c_str(), (r + "/new").c_str()); }},
    {"mknod of a file", [](const Path& r) { return ::mknod((r + "/new").c_str(), S_IFREG, 0); }},
    {"mknod of a device",
     [](const Path& r) { return ::mknod((r + "/new").c_str(), S_IFCHR, 259); }},
    {"mkfifo", [](const Path& r) { return ::mkfifo((r + "/new").c_str(), 0644); }},
    {"chmod", [](const Path& r) { return ::chmod((r + "/w").c_str(), 0600); }},
    {"fchmod",
     [](const Path& r) { return on_open(r + "/w", [](int f) { return ::fchmod(f, 0600); }); }},
    {"chown", [](const Path& r) { return ::chown((r + "/w").c_str(), 1, 1); }},
    {"lchown of a directory", [](const Path& r) { return ::lchown((r + "/d").c_str(), 1, 1); }},
    {"utimensat",
     [](const Path& r) { return ::utimensat(AT_FDCWD, (r + "/w").c_str(), nullptr, 0); }},
    {"futimens",
     [](const Path& r) { return on_open(r + "/w", [](int f) { return ::futimens(f, nullptr); }); }},
    {"setxattr",
     [](const Path& r) { return ::setxattr((r + "/w").c_str(), "trusted.x", "v", 1, 0); }},
    {"fsetxattr",
     [](const Path& r) {
       return on_open(r + "/w", [](int f) { return ::fsetxattr(f, "trusted.x", "v", 1, 0); });
     }},
    {"removexattr", [](const Path& r) { return ::removexattr((r + "/w").c_str(), "trusted.x"); }},
    {"access W_OK", [](const Path& r) { return ::access((r + "/w").c_str(), W_OK); }},
    {"access W_OK of a directory",
     [](const Path& r) { return ::access((r + "/d").c_str(), W_OK); }},
    {"FS_IOC_SETFLAGS",
     [](const Path& r) {
       return on_open(r + "/w", [](int f) {
         int flags = 0;
         return ::ioctl(f, FS_IOC_SETFLAGS, &flags);
       });
     }},
    {"copy_file_range",
     [](const Path& r) {
       return on_open(r + "/w",
                      [](int f) { return ::copy_file_range(f, nullptr, f, nullptr, 1, 0); });
     }},
    {"open by a name that is too long",
     [](const Path& r) { return opened(r + "/" + std::string(256, 'x'), O_WRONLY | O_CREAT); }},
    {"open below a file", [](const Path& r) { return opened(r + "/w/x", O_WRONLY | O_CREAT); }},
};

// Returns 0 or the errno.
int error_of(const Operation& operation, const Path& root) {
  errno = 0;
  return operation.act(root) < 0 ? errno : 0;
}

class Writing : public MountTest {
 protected:
  Writing() {
    write_safetensors(dir_ / "m.safetensors",
                      {random_tensor("w", "U8", {100}), random_tensor("d/x", "U8", {10})});
  }
  void SetUp() override {
    MountTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (::geteuid() != 0) GTEST_SKIP() << "mounting a tmpfs needs root";
  }
  ~Writing() override { unmount_all(dir_ / "oracle"); }

  // Mounts a read-only tmpfs with the same files.
  Path oracle() const {
    const Path root = dir_ / "oracle";
    std::filesystem::create_directory(root);
    EXPECT_EQ(::mount("tmpfs", root.c_str(), "tmpfs", 0, "size=1m"), 0) << std::strerror(errno);
    write_file(root + "/w", std::string(100, 'x'));
    std::filesystem::create_directory(root + "/d");
    write_file(root + "/d/x", std::string(10, 'x'));
    EXPECT_EQ(::mount("", root.c_str(), "", MS_REMOUNT | MS_RDONLY, nullptr), 0);
    write_file(root + ".outside", "x");
    return root;
  }

  TempDir dir_;
};

TEST_F(Writing, FailsLikeReadOnlyTmpfs) {
  const Path tmpfs = oracle();
  const Mounted mount({dir_ / "m.safetensors"});
  write_file(mount.path().string() + ".outside", "x");

  for (const Operation& operation : kOperations) {
    // A file system without the call may report that before it reports that it is read-only.
    const int error = error_of(operation, mount.path());
    const int expected = error_of(operation, tmpfs);
    const bool lacks_call = error == ENOTTY || error == EOPNOTSUPP || error == ENOSYS;
    if (!lacks_call) {
      EXPECT_EQ(error, expected) << operation.name << ": " << std::strerror(error)
                                 << ", tmpfs: " << std::strerror(expected);
    }
  }
}

TEST_F(Writing, FailsAndChangesNothingAfterReadWriteRemount) {
  const Path source = read_file(dir_ / "m.safetensors");
  const Mounted mount({dir_ / "m.safetensors"});
  write_file(mount.path().string() + ".outside", "x");
  const Path before = read_file(mount / "w");
  ASSERT_EQ(::mount("", mount.path().c_str(), "", MS_REMOUNT | MS_NOSUID | MS_NODEV, nullptr), 0);

  for (const Operation& operation : kOperations) {
    const int error = error_of(operation, mount.path());
    const bool may_succeed = Path(operation.name).starts_with("access") ||
                             Path(operation.name) == "open O_CREAT of a file";
    if (!may_succeed) {
      EXPECT_NE(error, 0) << operation.name;
    }
    EXPECT_NE(error, EIO) << operation.name;
    EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"d", "w"})) << operation.name;
  }

  // On an existing file, every change by the mounting user is EROFS.
  for (const char* name : {"open O_WRONLY", "open O_RDWR", "open O_TRUNC", "truncate", "unlink",
                           "rmdir", "rename", "mkdir", "symlink", "link", "mkfifo", "chmod",
                           "chown", "utimensat", "setxattr", "mknod of a file"}) {
    const auto* found = std::ranges::find(kOperations, std::string_view(name), &Operation::name);
    ASSERT_NE(found, std::end(kOperations)) << name;
    EXPECT_EQ(error_of(*found, mount.path()), EROFS) << name;
  }
  EXPECT_EQ(read_file(mount / "w"), before);
  EXPECT_EQ(read_file(dir_ / "m.safetensors"), source);
}

}  // namespace
}  // namespace stfs::test
