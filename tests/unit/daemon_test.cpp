// The log of a daemon, and where it goes.
#include "fs/fuse/daemon.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace stfs::test {
namespace {

// The file behind standard error.
std::pair<dev_t, ino_t> standard_error() {
  struct stat status {};
  EXPECT_EQ(::fstat(STDERR_FILENO, &status), 0);
  return {status.st_dev, status.st_ino};
}

TEST(CaptureStderr, GivesWhatWasWritten) {
  EXPECT_EQ(capture_stderr([] { EXPECT_EQ(::write(STDERR_FILENO, "line\n", 5), 5); }), "line\n");
}

TEST(CaptureStderr, GivesStandardErrorBackWhenTheActionThrows) {
  const auto before = standard_error();

  EXPECT_THROW(capture_stderr([] { throw std::runtime_error("thrown"); }), std::runtime_error);

  EXPECT_EQ(standard_error(), before);
}

}  // namespace
}  // namespace stfs::test
