// A source on a file system with attributes that the kernel caches (FUSE, NFS). The file is
// rewritten, the kernel does not notice, and each read still returns the mounted bytes or an error.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::size_t kElements = 1 << 20;  // elements of the BF16 tensor w
constexpr std::size_t kBlock = 64 << 10;

std::string as_f32(const std::string& bf16) {
  std::string floats;
  for (std::size_t i = 0; i < bf16.size(); i += 2)
    floats += std::string(2, '\0') + bf16.substr(i, 2);
  return floats;
}

std::string every_second(const std::string& bf16) {
  std::string half;
  for (std::size_t i = 0; i < bf16.size(); i += 4) half += bf16.substr(i, 2);
  return half;
}

class SourceWithCachedAttributes : public MountTest {
 protected:
  SourceWithCachedAttributes() {
    std::filesystem::create_directory(dir_ / "files");
    real_ = dir_ / "files/m.safetensors";
    write_safetensors(real_, {w_, v_});
  }
  void cache(const std::string& what) {
    disk_ = std::make_unique<FaultyDisk>(dir_ / "files", what);
    source_ = *disk_ / "m.safetensors";
  }
  // Rewrites the file with the same size and another mtime.
  void rewrite() const {
    write_safetensors(
        real_, {random_tensor("w", "BF16", {kElements}, 3), random_tensor("v", "U8", {kBlock}, 4)});
    const timespec times[] = {{0, UTIME_OMIT}, {2'000'000'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, real_.c_str(), times, 0), 0);
  }

  TempDir dir_;
  Tensor w_ = random_tensor("w", "BF16", {kElements}, 1);
  Tensor v_ = random_tensor("v", "U8", {kBlock}, 2);
  std::filesystem::path real_, source_;  // the real path, and the path on the faulty disk
  std::unique_ptr<FaultyDisk> disk_;
};

// The cache settings of the source's file system and of the mount.
class CachedAttributes
    : public SourceWithCachedAttributes,
      public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) cache(std::get<0>(GetParam()));
  }
  static std::vector<std::string> options() {
    return {"-o", std::string("cache=") + std::get<1>(GetParam())};
  }
};

INSTANTIATE_TEST_SUITE_P(All, CachedAttributes,
                         ::testing::Combine(::testing::Values("attributes", "all"),
                                            ::testing::Values("kernel", "direct")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param);
                         });

// Each view has its own mount, because a page that another view has read would keep the old bytes.
TEST_P(CachedAttributes, NeverReturnBytesOfNewVersion) {
  const std::pair<const char*, std::string> views[] = {
      {"w", w_.bytes},
      {".stfs/f32/w", as_f32(w_.bytes)},
      {".stfs/slice/w/::2", every_second(w_.bytes)},
      {".stfs/tree/w", w_.bytes},
      {".stfs/merged.safetensors", ""},
  };
  for (auto [path, bytes] : views) {
    write_safetensors(real_, {w_, v_});
    cache(std::get<0>(GetParam()));
    if (bytes.empty()) bytes = read_file(Mounted({real_}) / path);
    const Mounted mount({source_}, options());
    const int fd = ::open((mount / path).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0) << path;
    std::string block(kBlock, '\0');
    ASSERT_EQ(::pread(fd, block.data(), 4096, 0), 4096) << path;

    rewrite();

    std::size_t failures = 0;
    for (std::size_t at = 0; at < bytes.size() && !HasFailure(); at += kBlock) {
      const ssize_t got = ::pread(fd, block.data(), block.size(), static_cast<off_t>(at));
      if (got < 0) {
        EXPECT_EQ(errno, ESTALE) << path << " at " << at;
        ++failures;
        continue;
      }
      EXPECT_TRUE(block.compare(0, static_cast<std::size_t>(got), bytes, at,
                                static_cast<std::size_t>(got)) == 0)
          << path << " at " << at;
    }
    ::close(fd);
    EXPECT_GT(failures, 0U) << path;
    EXPECT_EQ(read_range(mount / "v", 0, 1, block), ESTALE) << "when opened after the change";
    EXPECT_EQ(run({"cat", mount / ".stfs/sha256/w"}).status, 1);
    EXPECT_EQ(run({"cat", mount / ".stfs/stats/w.json"}).status, 1);
  }
}

TEST_P(CachedAttributes, ServeUnchangedSource) {
  const Mounted mount({source_}, options());

  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(read_file(mount / "w") == w_.bytes);
    EXPECT_TRUE(read_file(mount / ".stfs/f32/w") == as_f32(w_.bytes));
  }
  EXPECT_EQ(run({"cat", mount / ".stfs/sha256/w"}).status, 0);
}

// The disk stalls a read while the file is rewritten.
TEST_F(SourceWithCachedAttributes, RewriteFailsReadingTool) {
  const std::size_t offset = entries_of(real_).at("w").offset;
  const std::vector<std::string> commands[] = {
      {STFS_INFO_BINARY, "hash", "SOURCE", "w"},
      {STFS_INFO_BINARY, "stats", "SOURCE", "w"},
      {STFS_INFO_BINARY, "cat", "SOURCE", "w"},
      {STFS_INFO_BINARY, "diff", "OTHER", "SOURCE"},
      {STFS_INFO_BINARY, "cat", "--as", "f32", "SOURCE", "w"},
      {STFS_INFO_BINARY, "extract", "SOURCE", "w", "-o", dir_ / "extracted"},
  };
  std::filesystem::copy_file(real_, dir_ / "other.safetensors");
  for (std::vector<std::string> command : commands) {
    write_safetensors(real_, {w_, v_});
    cache("attributes");
    for (std::string& word : command) {
      if (word == "SOURCE") word = source_;
      if (word == "OTHER") word = dir_ / "other.safetensors";
    }
    const std::size_t half = offset + w_.bytes.size() / 2;
    disk_->fail_or_stall("stall", "m.safetensors", half, half + 4096);
    Process tool(command);
    EXPECT_TRUE(disk_->stalls(1)) << command[1];

    rewrite();
    disk_->tell("release");
    const Outcome ended = tool.wait();

    EXPECT_EQ(ended.status, 3) << command[1] << ": " << ended.out.substr(0, 200) << ended.err;
  }
}

// The kernel cannot break a lease for writers on another machine, so stfs takes none.
TEST_F(SourceWithCachedAttributes, GetsNoLease) {
  cache("attributes");
  const Mounted mount({source_});
  ASSERT_TRUE(read_file(mount / "w") == w_.bytes);
  struct stat64 status = {};
  ASSERT_EQ(::stat64(source_.c_str(), &status), 0);

  const std::string locks = read_file("/proc/locks");

  char file[64];
  std::snprintf(file, sizeof file, "%02x:%02x:%lu ", major(status.st_dev), minor(status.st_dev),
                static_cast<unsigned long>(status.st_ino));
  EXPECT_EQ(locks.find(file), std::string::npos) << locks;
}

}  // namespace
}  // namespace stfs::test
