// The cache on real directories: what is there, what was damaged, who is beside us.
#include "core/source/cache.h"

#include "tests/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace stfs::cache_test {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kBlock = CacheEntry::kBlock;

RemoteVersion version_of(const std::string& name, std::uint64_t size,
                         const std::string& token = "web-1") {
  RemoteVersion version;
  version.name = "https://host/" + name;
  version.url = "https://host/" + name + "?secret=1";
  version.size = size;
  version.token = token;
  version.etag = "\"1\"";
  return version;
}

std::vector<std::byte> bytes_of(const CacheEntry& entry, std::uint64_t block, unsigned salt = 0) {
  std::vector<std::byte> bytes(entry.range_of(block).length);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + block * 7 + salt + 1);
  }
  return bytes;
}

// As a fetcher does it. Returns the errno of the first step that fails.
int fill(const CacheEntry& entry, std::uint64_t block, unsigned salt = 0) {
  if (!entry.claim(block)) return EBUSY;
  const std::vector<std::byte> bytes = bytes_of(entry, block, salt);
  const ByteRange range = entry.range_of(block);
  if (const int error = entry.reserve(range)) return error;
  if (const int error = entry.write(bytes, range.offset)) return error;
  CacheEntry::Sum sum(entry, block);
  const std::span<const std::byte> all(bytes);
  sum.add(all.first(all.size() / 3));
  sum.add(all.subspan(all.size() / 3));
  entry.publish(block, sum.value());
  entry.release(block);
  return 0;
}

[[maybe_unused]] void fill_all(const CacheEntry& entry, unsigned salt = 0) {
  for (std::uint64_t i = 0; i < entry.blocks(); ++i) ASSERT_EQ(fill(entry, i, salt), 0);
}

int check(const CacheEntry& entry, std::uint64_t block) {
  std::vector<std::byte> buffer(kBlock);
  return entry.check(block, buffer);
}

// Runs a part of a test in a child of its own; its failures are the exit status.
[[maybe_unused]] pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

[[maybe_unused]] int ended(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

class CacheTest : public testing::Test {
 protected:
  Cache open(std::uint64_t size = 0, unsigned keep_free = 0) const {
    return Cache({.directory = directory, .size = size, .keep_free = keep_free});
  }
  fs::path entry_of(const RemoteVersion& version) const {
    for (const auto& listed : open().list()) {
      if (listed.version.name == version.name && listed.version.token == version.token) {
        return fs::path(directory) / "v1/entries" / listed.id;
      }
    }
    ADD_FAILURE() << "no entry of " << version.name;
    return {};
  }

  test::TempDir temporary;
  std::string directory = temporary / "a/b";
};

TEST_F(CacheTest, ABlockIsAbsentUntilItIsPublishedAndThenStays) {
  const RemoteVersion version = version_of("m", 2 * kBlock + 100);
  {
    Cache cache = open();
    ASSERT_EQ(cache.unusable(), "");
    const auto entry = cache.open(version);
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->version().url, version.url);
    EXPECT_EQ(entry->blocks(), 3U);
    EXPECT_EQ(entry->range_of(2).length, 100U);
    EXPECT_FALSE(entry->is_there(2));
    EXPECT_EQ(check(*entry, 2), ENODATA);
    ASSERT_EQ(fill(*entry, 2), 0);
    EXPECT_TRUE(entry->is_there(2));
    EXPECT_FALSE(entry->is_there(0));
    ASSERT_EQ(fill(*entry, 0), 0);
  }
  const auto again = open().open(version, true);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->is_there(0));
  EXPECT_FALSE(again->is_there(1));
  EXPECT_EQ(check(*again, 0), 0);
  EXPECT_EQ(check(*again, 2), 0);
  std::vector<std::byte> bytes(100);
  ASSERT_EQ(again->read(bytes, 2 * kBlock), 0);
  EXPECT_EQ(bytes, bytes_of(*again, 2));
  EXPECT_EQ(std::vector(again->data() + 2 * kBlock, again->data() + 2 * kBlock + 100), bytes);
}

TEST_F(CacheTest, TheDirectoryIsOfItsUserAlone) {
  open();
  struct stat status {};
  for (const char* name : {"", "/v1", "/v1/entries", "/v1/trash", "/v1/names"}) {
    ASSERT_EQ(::stat((directory + name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U) << name;
  }
  ASSERT_EQ(::stat((temporary / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_TRUE(test::read_file(fs::path(directory) / "CACHEDIR.TAG")
                  .starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));
}

TEST_F(CacheTest, AnEmptyObjectHasNoBlocks) {
  const auto entry = open().open(version_of("m", 0));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->blocks(), 0U);
}

TEST_F(CacheTest, NoSecretIsKept) {
  open().open(version_of("m", 10));
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    if (file.is_regular_file()) {
      EXPECT_EQ(test::read_file(file).find("secret"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace stfs::cache_test
