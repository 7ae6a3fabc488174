// A source that changes while it is mounted: each byte read belongs to the mounted version, or the
// read fails.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::size_t kSize = 8 << 20;

class SourceChanges : public MountTest {
 public:
  SourceChanges() : tensor_(random_tensor("w", "U8", {kSize}, 1)), source_(dir_ / "m.safetensors") {
    write_safetensors(source_, {tensor_, random_tensor("v", "U8", {100}, 2)});
  }

  void truncate_source(std::uint64_t size) const { std::filesystem::resize_file(source_, size); }

  // Rewrites the file in place. The inode and the length stay, the bytes change.
  void rewrite_in_place() const {
    write_safetensors(source_,
                      {random_tensor("w", "U8", {kSize}, 3), random_tensor("v", "U8", {100}, 4)});
  }

  void replace_by_rename() const {
    write_safetensors(dir_ / "new", {random_tensor("w", "U8", {kSize}, 5)});
    std::filesystem::rename(dir_ / "new", source_);
  }

  // Opens a file for reading. Returns 0 or the errno.
  static int open_error(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    ::close(fd);
    return 0;
  }

  TempDir dir_;
  Tensor tensor_;
  std::filesystem::path source_;
};

TEST_F(SourceChanges, OpenAfterChangeInPlaceIsESTALE) {
  const struct {
    const char* name;
    std::function<void()> change;
  } rows[] = {
      {"truncation", [&] { truncate_source(4096); }},
      {"rewrite", [&] { rewrite_in_place(); }},
      {"append", [&] { truncate_source(std::filesystem::file_size(source_) + 1); }},
      {"mtime",
       [&] {
         const timespec times[] = {{0, UTIME_OMIT}, {1, 0}};
         ASSERT_EQ(::utimensat(AT_FDCWD, source_.c_str(), times, 0), 0);
       }},
  };
  for (const auto& [name, change] : rows) {
    SCOPED_TRACE(name);
    rewrite_in_place();
    const Mounted mount({source_});

    change();

    EXPECT_EQ(open_error(mount / "w"), ESTALE);
    EXPECT_EQ(open_error(mount / "v"), ESTALE);
    EXPECT_EQ(open_error(mount / ".stfs/header/m.safetensors.json"), ESTALE);
  }
}

TEST_F(SourceChanges, ReadsOldBytesAfterRenameOrRemoval) {
  for (const bool is_replaced : {true, false}) {
    SCOPED_TRACE(is_replaced ? "replaced" : "removed");
    write_safetensors(source_, {tensor_});
    const Mounted mount({source_});

    if (is_replaced) {
      replace_by_rename();
    } else {
      std::filesystem::remove(source_);
    }

    EXPECT_TRUE(read_file(mount / "w") == tensor_.bytes);
  }
}

// Reads a file that was open before the change, block by block to the end. Pages that the kernel
// has cached have the old bytes, and reads that need the source fail.
class OpenFile : public SourceChanges, public ::testing::WithParamInterface<const char*> {
 protected:
  void expect_old_bytes_or(int error, void (*change)(const OpenFile&)) {
    const Mounted mount({source_}, {"-o", std::string("cache=") + GetParam()});
    const int fd = ::open((mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    std::string block(4096, '\0');
    ASSERT_EQ(::pread(fd, block.data(), block.size(), 0), 4096);

    change(*this);

    int failures = 0;
    for (std::size_t at = 0; at < kSize; at += block.size()) {
      std::ranges::fill(block, '\0');
      const ssize_t got = ::pread(fd, block.data(), block.size(), static_cast<off_t>(at));
      if (got < 0) {
        EXPECT_EQ(errno, error) << at;
        ++failures;
      } else {
        EXPECT_EQ(got, 4096) << at;
        EXPECT_TRUE(block == tensor_.bytes.substr(at, block.size())) << at;
      }
      if (HasFailure()) break;
    }
    ::close(fd);
    EXPECT_GT(failures, 1000);
    struct stat64 status = {};
    ASSERT_EQ(::stat64((mount / "w").c_str(), &status), 0);
    EXPECT_EQ(static_cast<std::size_t>(status.st_size), kSize);
  }
};

INSTANTIATE_TEST_SUITE_P(Cache, OpenFile, ::testing::Values("kernel", "direct"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(OpenFile, ReadAfterTruncationIsESTALEAndNeverShort) {
  expect_old_bytes_or(ESTALE, [](const OpenFile& test) { test.truncate_source(4096); });
}

TEST_P(OpenFile, ReadAfterRewriteIsESTALEAndNeverOtherBytes) {
  expect_old_bytes_or(ESTALE, [](const OpenFile& test) { test.rewrite_in_place(); });
}

TEST_F(SourceChanges, ReadWithCachedFirstPageIsShortBeforeESTALE) {
  const Mounted mount({source_});
  const int fd = ::open((mount / "w").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM),
            0);  // so that the kernel caches only that page
  std::string bytes(8192, '\0');
  ASSERT_EQ(::pread(fd, bytes.data(), 4096, 0), 4096);

  rewrite_in_place();

  EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), 4096);
  EXPECT_TRUE(bytes.substr(0, 4096) == tensor_.bytes.substr(0, 4096));
  EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 4096), -1);
  EXPECT_EQ(errno, ESTALE);
  ::close(fd);
}

TEST_F(SourceChanges, MappedPageOfTruncatedSourceDoesNotKillDaemon) {
  const Mounted mount({source_});
  // The kernel may send SIGBUS to the child that touches the mapping, but not to the daemon.
  Process reader({"/usr/bin/python3", "-c", R"(
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.truncate(sys.argv[2], 4096)
for i in range(0, len(m), 4096): m[i]
)",
                  mount / "w", source_});

  reader.wait();

  EXPECT_EQ(names_in(mount.path()), (std::vector<std::string>{"v", "w"}));
  EXPECT_EQ(open_error(mount / "w"), ESTALE);
}

TEST_F(SourceChanges, ChangeIsLoggedOnce) {
  ForegroundMount mount({source_});

  truncate_source(4096);
  for (int i = 0; i < 20; ++i) open_error(mount / "w");
  open_error(mount / "v");

  mount.process().signal(SIGTERM);
  const std::string log = mount.process().wait().err;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_TRUE(log.starts_with("stfs: ")) << log;
  EXPECT_NE(log.find("m.safetensors"), std::string::npos) << log;
}

TEST_F(SourceChanges, NewMountServesNewVersion) {
  {
    const Mounted mount({source_});
    rewrite_in_place();
    EXPECT_EQ(open_error(mount / "w"), ESTALE);
  }

  const Mounted mount({source_});

  EXPECT_TRUE(read_file(mount / "w") == random_tensor("w", "U8", {kSize}, 3).bytes);
}

}  // namespace
}  // namespace stfs::test
