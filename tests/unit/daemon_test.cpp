// Tests of capture_stderr().
#include "fs/fuse/daemon.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace stfs::test {
namespace {

// Identifies the file that standard error refers to.
std::pair<dev_t, ino_t> standard_error() {
  struct stat status {};
  EXPECT_EQ(::fstat(STDERR_FILENO, &status), 0);
  return {status.st_dev, status.st_ino};
}

TEST(CaptureStderr, ReturnsWrittenText) {
  EXPECT_EQ(capture_stderr([] { EXPECT_EQ(::write(STDERR_FILENO, "line\n", 5), 5); }), "line\n");
}

TEST(CaptureStderr, RestoresStderrIfActionThrows) {
  const auto before = standard_error();

  EXPECT_THROW(capture_stderr([] { throw std::runtime_error("thrown"); }), std::runtime_error);

  EXPECT_EQ(standard_error(), before);
}

}  // namespace
}  // namespace stfs::test
