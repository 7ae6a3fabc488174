// Tests of the callbacks when the kernel rejects a reply because the process was interrupted.
#include "fs/fuse/fuse_ops.h"

#include "tests/unit/served_checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace {
stfs::FuseContext fuse_context;
int fuse_result = 0;        // returned by every fuse_reply_*()
fuse_ino_t fuse_entry = 0;  // the inode in the last entry reply
}  // namespace

// In this program, these definitions replace those in libfuse.
extern "C" void* fuse_req_userdata(fuse_req_t) { return &fuse_context; }
extern "C" int fuse_reply_open(fuse_req_t, const fuse_file_info*) { return fuse_result; }
extern "C" int fuse_reply_entry(fuse_req_t, const fuse_entry_param* entry) {
  fuse_entry = entry->ino;
  return fuse_result;
}
extern "C" int fuse_reply_err(fuse_req_t, int) { return fuse_result; }

namespace stfs::test {
namespace {

// Reads the snapshot that an open made. Returns 0 or an errno.
int read_error(FileSystem& filesystem, std::uint64_t inode, std::uint64_t handle) {
  int error = -1;
  filesystem.read(
      {inode, 0, 4096, handle}, [](FileSystem::Ticket) {},
      [&](int result, const Reply&) { error = result; });
  return error;
}

TEST(FuseOperations, ReleaseOpenFileIfKernelRejectsReply) {
  const ServedCheckpoint served({{"w", "U8", {4}, "1234"}});
  fuse_context.filesystem = served.operator->();
  const std::uint64_t inode = served.inode(".stfs/counters.json");
  for (const int result : {0, -ENOENT}) {
    fuse_result = result;
    fuse_file_info file{};
    file.flags = O_RDONLY;

    fuse_operations().open(nullptr, inode, &file);

    ASSERT_NE(file.fh, 0U);
    EXPECT_EQ(read_error(*fuse_context.filesystem, inode, file.fh), result == 0 ? 0 : EIO);
  }
}

TEST(FuseOperations, ForgetNameIfKernelRejectsReply) {
  const ServedCheckpoint served({{"w", "U8", {4}, "1234"}});
  fuse_context.filesystem = served.operator->();
  const std::uint64_t slices = served.inode(".stfs/slice/w");
  for (const int result : {0, -ENOENT}) {
    fuse_result = result;

    fuse_operations().lookup(nullptr, slices, result == 0 ? "0:2" : "1:3");

    ASSERT_NE(fuse_entry, 0U);
    EXPECT_EQ(served->attributes(fuse_entry).has_value(), result == 0);
  }
}

}  // namespace
}  // namespace stfs::test
