// What the callbacks do when the kernel does not take their answer: its process was interrupted.
#include "fs/fuse/fuse_ops.h"

#include "tests/unit/served_checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace {
stfs::FuseContext fuse_context;
int fuse_result = 0;        // of each answer
fuse_ino_t fuse_entry = 0;  // of the last one
}  // namespace

// Stand before libfuse's, of this program.
extern "C" void* fuse_req_userdata(fuse_req_t) { return &fuse_context; }
extern "C" int fuse_reply_open(fuse_req_t, const fuse_file_info*) { return fuse_result; }
extern "C" int fuse_reply_entry(fuse_req_t, const fuse_entry_param* entry) {
  fuse_entry = entry->ino;
  return fuse_result;
}
extern "C" int fuse_reply_err(fuse_req_t, int) { return fuse_result; }

namespace stfs::test {
namespace {

// A read of the snapshot that an open made: 0 or an errno.
int error_of_read(FileSystem& filesystem, std::uint64_t inode, std::uint64_t handle) {
  int error = -1;
  filesystem.read(
      {inode, 0, 4096, handle}, [](FileSystem::Ticket) {},
      [&](int of_read, const Reply&) { error = of_read; });
  return error;
}

TEST(FuseOperations, AnOpenWhoseAnswerTheKernelDidNotTakeIsReleased) {
  const ServedCheckpoint served({{"w", "U8", {4}, "1234"}});
  fuse_context.filesystem = served.operator->();
  const std::uint64_t inode = served.inode(".stfs/counters.json");
  for (const int answered : {0, -ENOENT}) {
    fuse_result = answered;
    fuse_file_info file{};
    file.flags = O_RDONLY;

    fuse_operations().open(nullptr, inode, &file);

    ASSERT_NE(file.fh, 0U);
    EXPECT_EQ(error_of_read(*fuse_context.filesystem, inode, file.fh), answered == 0 ? 0 : EIO);
  }
}

TEST(FuseOperations, ANameWhoseEntryTheKernelDidNotTakeIsForgotten) {
  const ServedCheckpoint served({{"w", "U8", {4}, "1234"}});
  fuse_context.filesystem = served.operator->();
  const std::uint64_t slices = served.inode(".stfs/slice/w");
  for (const int answered : {0, -ENOENT}) {
    fuse_result = answered;

    fuse_operations().lookup(nullptr, slices, answered == 0 ? "0:2" : "1:3");

    ASSERT_NE(fuse_entry, 0U);
    EXPECT_EQ(served->attributes(fuse_entry).has_value(), answered == 0);
  }
}

}  // namespace
}  // namespace stfs::test
