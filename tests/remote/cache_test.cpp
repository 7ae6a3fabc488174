// The cache in real directories: its entries, damage to them, and other processes and users.
#include "core/remote/cache/cache.h"

#include "core/base/text.h"
#include "tests/remote/remote_support.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
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

// Fetches a block like a fetcher. Returns the errno of the first step that fails.
int fill(const CacheEntry& entry, std::uint64_t block, unsigned salt = 0) {
  if (!entry.claim(block)) return EBUSY;
  const std::vector<std::byte> bytes = bytes_of(entry, block, salt);
  const ByteRange range = entry.range_of(block);
  if (const int error = entry.reserve(range)) return error;
  if (const int error = entry.write(block, bytes)) return error;
  entry.release(block);
  return 0;
}

void fill_all(const CacheEntry& entry, unsigned salt = 0) {
  for (std::uint64_t i = 0; i < entry.blocks(); ++i) ASSERT_EQ(fill(entry, i, salt), 0);
}

int check(const CacheEntry& entry, std::uint64_t block) {
  std::vector<std::byte> buffer(kBlock);
  return entry.check(block, buffer);
}

// Runs a part of a test in a child process. The exit status of the child reports failures.
pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

int ended(pid_t child) {
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

TEST_F(CacheTest, BlockIsAbsentUntilPublishedThenStays) {
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
}

TEST_F(CacheTest, DirectoryIsAccessibleOnlyToItsUser) {
  open();
  struct stat status {};
  for (const char* name : {"", "/v1", "/v1/entries", "/v1/trash", "/v1/names"}) {
    ASSERT_EQ(::stat((directory + name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U) << name;
  }
  ASSERT_EQ(::stat((temporary / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_TRUE(test::read_file(fs::path(directory) / "v1/CACHEDIR.TAG")
                  .starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));
}

TEST_F(CacheTest, CreatesPrivateFilesWhateverUmask) {
  const mode_t mask = ::umask(0);
  Cache cache = open();
  fill_all(*cache.open(version_of("m", kBlock)));
  cache.remember("name", "{}");
  ::umask(mask);
  std::size_t files = 0;
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    struct stat status {};
    ASSERT_EQ(::lstat(file.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, S_ISDIR(status.st_mode) ? 0700U : 0600U) << file.path();
    EXPECT_EQ(status.st_uid, ::geteuid());
    files += S_ISREG(status.st_mode) ? 1 : 0;
  }
  EXPECT_EQ(files, 5U) << "data, map, id.json, a name, CACHEDIR.TAG";
}

// Such files exist in a directory that was handed over, or in root's cache if a user once wrote
// there.
TEST_F(CacheTest, DoesNotTrustFilesOwnedByOtherUser) {
  const RemoteVersion version = version_of("m", kBlock);
  for (const char* const name : {"", "data", "map", "id.json"}) {
    SCOPED_TRACE(name);
    fill_all(*open().open(version));
    const fs::path theirs = entry_of(version) / name;
    if (::lchown(theirs.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this process may not chown";
    EXPECT_TRUE(open().list().empty());
    const auto entry = open().open(version);
    ASSERT_TRUE(entry);
    EXPECT_FALSE(entry->is_there(0));
  }
  Cache cache = open();
  cache.remember("name", "{}");
  for (const auto& file : fs::directory_iterator(fs::path(directory) / "v1/names")) {
    ASSERT_EQ(::lchown(file.path().c_str(), 12345, 12345), 0);
  }
  EXPECT_EQ(cache.recall("name"), std::nullopt);
}

// A server may claim any size, so the size of an object alone must not use disk space.
TEST_F(CacheTest, MapDiskUsageFollowsPresentBlocks) {
  constexpr std::uint64_t kClaimed = 15'000'000'000'000;
  const auto entry = open().open(version_of("m", kClaimed));
  if (!entry) GTEST_SKIP() << "no file of this size";
  EXPECT_LE(open().list().at(0).bytes, 64U << 10);
  ASSERT_EQ(fill(*entry, 1), 0);
  ASSERT_EQ(fill(*entry, 50'000'000), 0);
  EXPECT_EQ(check(*entry, 50'000'000), 0);
  EXPECT_EQ(check(*entry, 49'999'999), ENODATA);
  EXPECT_LE(open().list().at(0).bytes, 2 * kBlock + (64U << 10));
}

TEST_F(CacheTest, MakeRoomCountsMap) {
  EXPECT_FALSE(open(kBlock).make_room(kBlock));
  EXPECT_TRUE(open(kBlock + 4096).make_room(kBlock));
}

// Each of these blocks has its own page of the map.
TEST_F(CacheTest, EntrySizeIncludesMap) {
  Cache cache = open();
  const auto entry = cache.open(version_of("m", 16'000 * kBlock));
  const std::uint64_t before = cache.list().at(0).bytes;
  for (std::uint64_t block = 0; block < 16'000; block += 1000) {
    ASSERT_EQ(fill(*entry, block), 0);
  }
  EXPECT_GE(cache.list().at(0).bytes, before + 16 * (kBlock + 4096) - 4096);
}

TEST_F(CacheTest, EmptyObjectHasNoBlocks) {
  const auto entry = open().open(version_of("m", 0));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->blocks(), 0U);
}

TEST_F(CacheTest, StoresNoSecret) {
  open().open(version_of("m", 10));
  for (const auto& file : fs::recursive_directory_iterator(directory)) {
    if (file.is_regular_file()) {
      EXPECT_EQ(test::read_file(file).find("secret"), std::string::npos);
    }
  }
}

// A kind of damage to an entry that is not in use.
struct Damage {
  const char* name;
  void (*harm)(const fs::path& entry);
};

std::ostream& operator<<(std::ostream& out, const Damage& damage) { return out << damage.name; }

class DamagedCache : public CacheTest, public testing::WithParamInterface<Damage> {};

TEST_P(DamagedCache, OpensAsEmptyEntry) {
  const RemoteVersion version = version_of("m", 3 * kBlock);
  fill_all(*open().open(version));
  // The links that point out of the entry point to this file.
  test::write_file(temporary / "outside", "precious");
  GetParam().harm(entry_of(version));
  const auto entry = open().open(version);
  ASSERT_TRUE(entry);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_FALSE(entry->is_there(i));
  fill_all(*entry, 5);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(check(*entry, i), 0);
  EXPECT_EQ(test::read_file(temporary / "outside"), "precious");
  EXPECT_EQ(test::names_in(fs::path(directory) / "v1/trash").size(), 0U);
}

void replace_by_link(const fs::path& file, const char* target) {
  fs::remove_all(file);
  fs::create_symlink(target, file);
}

void replace_by_fifo(const fs::path& file) {
  fs::remove_all(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
}

void overwrite(const fs::path& file, off_t offset, const std::string& bytes) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), offset),
            static_cast<ssize_t>(bytes.size()));
}

constexpr const char* kOutside = "../../../../../../outside";

INSTANTIATE_TEST_SUITE_P(
    All, DamagedCache,
    testing::Values(
        Damage{"MapTooShort", [](const fs::path& e) { fs::resize_file(e / "map", 64 + 16); }},
        Damage{"MapEmpty", [](const fs::path& e) { fs::resize_file(e / "map", 0); }},
        Damage{"MapTooLong", [](const fs::path& e) { fs::resize_file(e / "map", 4096); }},
        Damage{"MapHeaderZeroed",
               [](const fs::path& e) { overwrite(e / "map", 0, std::string(64, 0)); }},
        Damage{"MapHeaderFlipped", [](const fs::path& e) { overwrite(e / "map", 17, "x"); }},
        Damage{"MapChecksumFlipped", [](const fs::path& e) { overwrite(e / "map", 60, "xyz"); }},
        Damage{"MapMissing", [](const fs::path& e) { fs::remove(e / "map"); }},
        Damage{"MapIsLink", [](const fs::path& e) { replace_by_link(e / "map", kOutside); }},
        Damage{"MapIsFifo", [](const fs::path& e) { replace_by_fifo(e / "map"); }},
        Damage{"DataMissing", [](const fs::path& e) { fs::remove(e / "data"); }},
        Damage{"DataIsLink", [](const fs::path& e) { replace_by_link(e / "data", kOutside); }},
        Damage{"DataIsLoop", [](const fs::path& e) { replace_by_link(e / "data", "data"); }},
        Damage{"DataIsFifo", [](const fs::path& e) { replace_by_fifo(e / "data"); }},
        Damage{"DataIsDirectory",
               [](const fs::path& e) {
                 fs::remove(e / "data");
                 fs::create_directories(e / "data/deep/deeper");
               }},
        Damage{"IdMissing", [](const fs::path& e) { fs::remove(e / "id.json"); }},
        Damage{"IdEmpty", [](const fs::path& e) { fs::resize_file(e / "id.json", 0); }},
        Damage{"IdGarbage", [](const fs::path& e) { test::write_file(e / "id.json", "{]\x01"); }},
        Damage{"IdHuge",
               [](const fs::path& e) {
                 test::write_file(e / "id.json",
                                  test::read_file(e / "id.json") + std::string(70000, ' '));
               }},
        Damage{"IdOfAnotherToken",
               [](const fs::path& e) {
                 test::write_file(e / "id.json",
                                  to_json(version_of("m", 3 * kBlock, "web-2"), false));
               }},
        Damage{"IdOfAnotherName",
               [](const fs::path& e) {
                 test::write_file(e / "id.json", to_json(version_of("n", 3 * kBlock), false));
               }},
        Damage{"IdOfAnotherSize",
               [](const fs::path& e) {
                 test::write_file(e / "id.json", to_json(version_of("m", 2 * kBlock), false));
               }},
        Damage{"IdIsFifo", [](const fs::path& e) { replace_by_fifo(e / "id.json"); }},
        Damage{"EntryIsFile",
               [](const fs::path& e) {
                 fs::remove_all(e);
                 test::write_file(e, "");
               }},
        Damage{"EntryIsFifo", [](const fs::path& e) { replace_by_fifo(e); }},
        Damage{"EntryIsLink", [](const fs::path& e) { replace_by_link(e, "../../../.."); }},
        Damage{"EntryIsLoop", [](const fs::path& e) { replace_by_link(e, e.filename().c_str()); }}),
    [](const auto& damage) { return damage.param.name; });

TEST_F(CacheTest, NeitherOpensNorRemovesDamagedEntryInUse) {
  const RemoteVersion version = version_of("m", kBlock);
  const auto user = open().open(version);
  ASSERT_EQ(fill(*user, 0), 0);
  test::write_file(entry_of(version) / "id.json", "{}");
  EXPECT_FALSE(open().open(version));
  EXPECT_EQ(check(*user, 0), 0);
}

TEST_F(CacheTest, SameNameWithOtherTokenIsSeparateEntry) {
  const RemoteVersion a = version_of("m", kBlock, "a");
  const RemoteVersion b = version_of("m", kBlock, "b");
  const auto one = open().open(a);
  const auto two = open().open(b);
  ASSERT_EQ(fill(*one, 0), 0);
  EXPECT_FALSE(two->is_there(0));
  // The bytes and the map word of one entry are not valid in the other.
  overwrite(entry_of(b) / "data", 0, test::read_file(entry_of(a) / "data"));
  overwrite(entry_of(b) / "map", 64, test::read_file(entry_of(a) / "map").substr(64));
  EXPECT_EQ(check(*two, 0), EILSEQ);
  EXPECT_FALSE(two->is_there(0));
}

TEST_F(CacheTest, ChangedBytesInvalidateOnlyTheirBlock) {
  const RemoteVersion version = version_of("m", 3 * kBlock + 7);
  fill_all(*open().open(version));
  const fs::path data = entry_of(version) / "data";
  overwrite(data, kBlock + 12345, "?");
  {
    const auto entry = open().open(version);
    EXPECT_EQ(check(*entry, 0), 0);
    EXPECT_EQ(check(*entry, 1), EILSEQ);
    EXPECT_FALSE(entry->is_there(1));
    EXPECT_EQ(check(*entry, 1), ENODATA);
    ASSERT_EQ(fill(*entry, 1), 0);
    EXPECT_EQ(check(*entry, 1), 0);
  }
  fs::resize_file(data, 2 * kBlock + 1);  // opening extends the file with zeros
  {
    const auto entry = open().open(version);
    EXPECT_EQ(fs::file_size(data), version.size);
    EXPECT_EQ(check(*entry, 1), 0);
    EXPECT_EQ(check(*entry, 2), EILSEQ);
    EXPECT_EQ(check(*entry, 3), EILSEQ);
    fs::resize_file(data, 10);  // while the entry is open
    EXPECT_EQ(check(*entry, 0), EILSEQ);
    fs::resize_file(entry_of(version) / "map", 0);
    EXPECT_FALSE(entry->is_there(1));
  }
}

TEST_F(CacheTest, SwappedBlocksFailChecksum) {
  const RemoteVersion version = version_of("m", 2 * kBlock);
  const auto entry = open().open(version);
  fill_all(*entry);
  const std::string map = test::read_file(entry_of(version) / "map");
  overwrite(entry_of(version) / "map", 64, map.substr(72, 8) + map.substr(64, 8));
  const std::string data = test::read_file(entry_of(version) / "data");
  overwrite(entry_of(version) / "data", 0, data.substr(kBlock) + data.substr(0, kBlock));
  EXPECT_EQ(check(*entry, 0), EILSEQ);
  EXPECT_EQ(check(*entry, 1), EILSEQ);
}

TEST_F(CacheTest, RejectsWritesOtherThanWholeBlocks) {
  const auto entry = open().open(version_of("m", kBlock + 10));
  const std::vector<std::byte> bytes(11);
  EXPECT_EQ(entry->write(0, bytes), EINVAL);
  EXPECT_EQ(entry->write(1, bytes), EINVAL);
  EXPECT_EQ(entry->write(~std::uint64_t{0}, bytes), EINVAL);
  EXPECT_EQ(entry->reserve({kBlock, 11}), EINVAL);
  EXPECT_EQ(entry->reserve({~std::uint64_t{0}, 2}), EINVAL);
  EXPECT_EQ(entry->reserve({0, 0}), 0);
}

// A write past the end would turn the truncated part into zeros.
TEST_F(CacheTest, DoesNotWriteToTruncatedFile) {
  const auto entry = open().open(version_of("m", 4 * kBlock));
  ASSERT_EQ(fill(*entry, 0), 0);
  const fs::path data = entry_of(version_of("m", 0)) / "data";
  fs::resize_file(data, 1000);
  EXPECT_EQ(entry->write(1, bytes_of(*entry, 1)), EIO);
  EXPECT_EQ(fs::file_size(data), 1000U);
}

TEST_F(CacheTest, DoesNotListEntryWithIdOfOtherEntry) {
  for (const char* const name : {"a", "b"}) fill_all(*open().open(version_of(name, kBlock)));
  const fs::path a = entry_of(version_of("a", 0)), b = entry_of(version_of("b", 0));
  fs::copy_file(a / "id.json", b / "id.json", fs::copy_options::overwrite_existing);
  ASSERT_EQ(open().list().size(), 1U);
  EXPECT_EQ(open().list()[0].id, a.filename());
}

TEST_F(CacheTest, ImpossibleSizeGetsNoEntry) {
  for (const std::uint64_t size :
       {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 62}) {
    EXPECT_FALSE(open().open(version_of("m", size)));
  }
  EXPECT_EQ(test::names_in(fs::path(directory) / "v1/trash").size(), 0U);
}

TEST_F(CacheTest, ClaimExcludesOthersUntilItsProcessEnds) {
  const RemoteVersion version = version_of("m", 3 * kBlock);
  const auto one = open().open(version);
  const auto two = open().open(version);
  EXPECT_TRUE(one->claim(1));
  EXPECT_FALSE(two->claim(1));
  EXPECT_TRUE(two->claim(2));
  EXPECT_FALSE(one->claim(2));
  one->release(1);
  EXPECT_TRUE(two->claim(1));
  two->release(0);  // a claim that it does not have

  // A process that dies after it has reserved space and before it writes.
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = in_child([&] {
    const auto entry = open().open(version);
    EXPECT_TRUE(entry->claim(0));
    EXPECT_EQ(entry->reserve({0, kBlock}), 0);
    EXPECT_EQ(::write(ready[1], "", 1), 1);
    ::pause();
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_FALSE(one->claim(0));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ended(child);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_FALSE(one->is_there(0));
  EXPECT_EQ(fill(*one, 0), 0);
  EXPECT_EQ(check(*one, 0), 0);
}

TEST_F(CacheTest, EvictsLeastRecentlyUsedEntryNotInUse) {
  for (const char* name : {"a", "b", "c", "d"})
    fill_all(*open().open(version_of(name, 4 * kBlock)));
  const auto user = open().open(version_of("b", 4 * kBlock));
  long second = 0;
  for (const char* name : {"a", "b", "c", "d"}) {
    const std::array<timespec, 2> times{timespec{++second, 0}, timespec{second, 0}};
    const fs::path id = entry_of(version_of(name, 0)) / "id.json";
    ASSERT_EQ(::utimensat(AT_FDCWD, id.c_str(), times.data(), 0), 0);
  }
  open().open(version_of("a", 4 * kBlock));  // is now the most recently used
  const std::uint64_t bound = 19 * kBlock;
  Cache cache = open(bound);
  ASSERT_EQ(cache.list().size(), 4U);
  EXPECT_EQ(cache.list().front().version.name, "https://host/a");
  EXPECT_TRUE(cache.make_room(kBlock));
  EXPECT_EQ(cache.list().size(), 4U);
  EXPECT_TRUE(cache.make_room(6 * kBlock));
  std::vector<std::string> left;
  for (const auto& listed : cache.list()) left.push_back(listed.version.name);
  EXPECT_EQ(left, (std::vector<std::string>{"https://host/a", "https://host/d", "https://host/b"}));
  EXPECT_FALSE(cache.make_room(16 * kBlock)) << "b is in use";
  ASSERT_EQ(cache.list().size(), 1U);
  EXPECT_TRUE(cache.list().front().in_use);
  EXPECT_FALSE(cache.make_room(bound + 1));
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(check(*user, i), 0);
  EXPECT_EQ(test::names_in(fs::path(directory) / "v1/trash").size(), 0U);
}

TEST_F(CacheTest, KeepsPartOfDiskFree) {
  fill_all(*open().open(version_of("a", kBlock)));
  EXPECT_FALSE(open(0, 100).make_room(1));
  EXPECT_TRUE(open().list().empty());
}

TEST_F(CacheTest, ListsEntries) {
  const RemoteVersion version = version_of("m\x1b[31m\n", 3 * kBlock + 1);
  EXPECT_TRUE(open().list().empty());
  const auto entry = open().open(version);
  ASSERT_EQ(fill(*entry, 3), 0);
  ASSERT_EQ(fill(*entry, 1), 0);
  const auto listed = open().list();
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].version.name, version.name);
  EXPECT_EQ(listed[0].version.size, version.size);
  EXPECT_EQ(listed[0].version.url, "");
  EXPECT_EQ(listed[0].blocks_there, 2U);
  EXPECT_GE(listed[0].bytes, kBlock);
  EXPECT_LT(listed[0].bytes, 3 * kBlock);
  EXPECT_TRUE(listed[0].in_use);
  EXPECT_GT(listed[0].used.tv_sec, 0);
}

TEST_F(CacheTest, PrunesAndRemovesOnlyUnusedEntries) {
  Cache cache = open();
  fill_all(*cache.open(version_of("a", 2 * kBlock)));
  fill_all(*cache.open(version_of("b", 2 * kBlock)));
  auto user = cache.open(version_of("c", kBlock));
  fill_all(*user);
  const std::string used = cache.list().front().id;
  EXPECT_FALSE(cache.remove(used));
  EXPECT_FALSE(cache.remove("../names"));
  EXPECT_EQ(cache.prune(std::uint64_t{1} << 40), 0U);
  EXPECT_GE(cache.prune(4 * kBlock), 2 * kBlock);
  EXPECT_EQ(cache.list().size(), 2U);
  EXPECT_GE(cache.prune(0), 2 * kBlock);
  EXPECT_EQ(cache.list().size(), 1U);
  EXPECT_EQ(check(*user, 0), 0);
  user.reset();
  EXPECT_TRUE(cache.remove(used));
  EXPECT_TRUE(cache.remove(used));
  EXPECT_TRUE(cache.list().empty());
}

TEST_F(CacheTest, IgnoresForeignFilesInDirectory) {
  open().open(version_of("m", kBlock));
  const fs::path entries = fs::path(directory) / "v1/entries";
  for (int i = 0; i < 10000; ++i) {
    test::write_file(entries / ("garbage" + std::to_string(i)), "");
  }
  replace_by_fifo(entries / std::string(64, 'a'));
  replace_by_link(entries / std::string(64, 'b'), std::string(64, 'b').c_str());
  fs::create_directories(entries / std::string(64, 'c') / "map");
  EXPECT_EQ(open().list().size(), 1U);
  EXPECT_TRUE(open().make_room(1));
  open().prune(0);
  EXPECT_EQ(test::names_in(entries).size(), 10000U) << "foreign files stay";
}

TEST_F(CacheTest, EmptiesTrashExceptEntriesBeingCreated) {
  open();
  const fs::path trash = fs::path(directory) / "v1/trash";
  fs::create_directories(trash / "old/deep");
  test::write_file(trash / "old/data", "x");
  test::write_file(trash / "file", "x");
  fs::create_directories(trash / "new");
  test::write_file(trash / "new/data", "x");
  {
    const UniqueFd maker(::open((trash / "new/data").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(maker.get(), LOCK_SH), 0);
    open();
    EXPECT_EQ(test::names_in(trash), std::vector<std::string>{"new"});
  }
  open();
  EXPECT_TRUE(test::names_in(trash).empty());
}

TEST_F(CacheTest, ConcurrentProcessesReadRightBytesDuringEviction) {
  open();
  std::vector<pid_t> children;
  for (unsigned seed = 0; seed < 4; ++seed) {
    children.push_back(in_child([&, seed] {
      Cache cache = open();
      for (unsigned i = 0; i < 60; ++i) {
        if ((i + seed) % 7 == 0) cache.prune(0);
        if ((i + seed) % 11 == 0) cache.list();
        const auto entry = cache.open(version_of(std::to_string((i + seed) % 3), 2 * kBlock));
        ASSERT_TRUE(entry) << errno;
        for (std::uint64_t block = 0; block < 2; ++block) {
          if (!entry->is_there(block)) {
            const int error = fill(*entry, block);
            ASSERT_TRUE(error == 0 || error == EBUSY) << error;
          }
          if (!entry->is_there(block)) continue;
          ASSERT_EQ(check(*entry, block), 0);
          std::vector<std::byte> bytes(kBlock);
          ASSERT_EQ(entry->read(bytes, block * kBlock), 0);
          ASSERT_EQ(bytes, bytes_of(*entry, block));
        }
      }
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(ended(child), 0);
  EXPECT_TRUE(open().make_room(1));
  EXPECT_TRUE(test::names_in(fs::path(directory) / "v1/trash").empty());
}

TEST_F(CacheTest, ThreadsShareEntry) {
  constexpr std::uint64_t kBlocks = 16;
  const auto entry = open().open(version_of("m", kBlocks * kBlock));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = t; i < kBlocks; i += 4) EXPECT_EQ(fill(*entry, i), 0);
      for (std::uint64_t i = 0; i < kBlocks; ++i) {
        if (entry->is_there(i)) {
          EXPECT_EQ(check(*entry, i), 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t i = 0; i < kBlocks; ++i) EXPECT_EQ(check(*entry, i), 0);
}

// --- the limit on the size of files ---

// A batch system or PAM may set this limit. The disposition of SIGXFSZ belongs to the host program.
TEST_F(CacheTest, FileSizeLimitGivesEFBIGAndNoSignal) {
  const RemoteVersion version = version_of("m", 8 * kBlock);
  fill_all(*open().open(version));
  const pid_t child = in_child([&] {
    ::signal(SIGXFSZ, SIG_DFL);
    Cache cache = open();
    const auto entry = cache.open(version);
    const rlimit limit{2 * kBlock, 2 * kBlock};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_FALSE(cache.open(version_of("larger", 3 * kBlock)));
    EXPECT_TRUE(cache.open(version_of("smaller", 2 * kBlock)));
    EXPECT_FALSE(cache.remember("name", std::string(3 * kBlock, ' ')));
    EXPECT_TRUE(cache.remember("name", "1"));
    EXPECT_EQ(entry->reserve({kBlock, kBlock}), 0);
    EXPECT_EQ(entry->reserve({kBlock, kBlock + 1}), EFBIG);
    EXPECT_EQ(entry->write(2, bytes_of(*entry, 2)), EFBIG);
    const auto others = open().open(version);
    ASSERT_TRUE(others);
    EXPECT_EQ(check(*others, 7), 0) << "cached blocks are readable";
    struct sigaction now {};
    sigset_t pending, blocked;
    ::sigaction(SIGXFSZ, nullptr, &now);
    ::sigpending(&pending);
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    EXPECT_EQ(now.sa_handler, SIG_DFL);
    EXPECT_FALSE(sigismember(&pending, SIGXFSZ) || sigismember(&blocked, SIGXFSZ));
  });
  EXPECT_EQ(ended(child), 0);
}

// --- another user's directory ---

TEST_F(CacheTest, ReadsNamedDirectoryWritableOnlyByOtherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  directory = temporary / "a/stfs";
  const RemoteVersion version = version_of("m", 2 * kBlock);
  ASSERT_EQ(fill(*open().open(version), 1), 0);
  ASSERT_TRUE(open().remember("name", "1"));
  const fs::path entry_path = entry_of(version);
  fs::permissions(temporary.path(), fs::perms(0755));
  fs::permissions(temporary / "a", fs::perms(0755));
  const auto open_to_all = [&] {
    for (const auto& file : fs::recursive_directory_iterator(directory)) {
      fs::permissions(file.path(), fs::perms(file.is_directory() ? 0755 : 0644));
    }
    fs::permissions(directory, fs::perms(0755));
  };
  const auto as_another = [&](const std::function<void(Cache & named)>& body) {
    return ended(in_child([&] {
      ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
      Cache named = open();
      body(named);
    }));
  };
  open_to_all();
  EXPECT_EQ(as_another([&](Cache& cache) {
              EXPECT_EQ(cache.unusable(), "");
              const auto entry = cache.open(version);
              ASSERT_TRUE(entry);
              EXPECT_EQ(check(*entry, 1), 0);
              EXPECT_EQ(entry->reserve({0, kBlock}), EROFS);
              EXPECT_EQ(cache.recall("name"), "1");
              EXPECT_FALSE(cache.remember("name", "2"));
              EXPECT_FALSE(cache.open(version_of("n", kBlock)));
              EXPECT_FALSE(cache.make_room(1));
              test::Environment environment("XDG_CACHE_HOME", temporary / "a");
              environment.set("STFS_CACHE", std::nullopt);
              EXPECT_NE(open().unusable().find("belongs to another user"), std::string::npos)
                  << "the default directory is not shared";
            }),
            0);
  for (const char* const file : {"data", "map", "id.json", "."}) {
    fs::permissions(entry_path / file, fs::perms(0666), fs::perm_options::add);
    EXPECT_EQ(as_another([&](Cache& cache) { EXPECT_FALSE(cache.open(version)) << file; }), 0);
    open_to_all();
    ASSERT_EQ(::chown((entry_path / file).c_str(), 1, 1), 0);
    EXPECT_EQ(as_another([&](Cache& cache) { EXPECT_FALSE(cache.open(version)) << file; }), 0);
    ASSERT_EQ(::chown((entry_path / file).c_str(), 0, 0), 0);
  }
  for (const char* const name : {"", "v1", "v1/entries", "v1/names"}) {
    fs::permissions(fs::path(directory) / name, fs::perms(0775));
    EXPECT_EQ(as_another([&](Cache& cache) { EXPECT_NE(cache.unusable(), "") << name; }), 0);
    open_to_all();
  }
  EXPECT_EQ(as_another([&](Cache& cache) { EXPECT_TRUE(cache.open(version)); }), 0);
}

// --- directories that are not used ---

TEST_F(CacheTest, RejectsDirectoryWritableByOthers) {
  fs::create_directories(directory);
  ASSERT_EQ(::chmod(directory.c_str(), 0770), 0);
  Cache cache = open();
  EXPECT_EQ(cache.unusable(), directory +
                                  ": other users may write to the cache: run chmod go-w, or "
                                  "name another directory in STFS_CACHE");
  EXPECT_FALSE(cache.open(version_of("m", 1)));
  EXPECT_FALSE(cache.make_room(1));
  EXPECT_EQ(cache.prune(0), 0U);
  EXPECT_TRUE(cache.list().empty());
  cache.remember("a", "b");
  EXPECT_FALSE(cache.recall("a"));
  EXPECT_TRUE(fs::is_empty(directory));

  ASSERT_EQ(::chmod(directory.c_str(), 0755), 0);
  EXPECT_EQ(open().unusable(), "");
}

TEST_F(CacheTest, FollowsSymlinkOnlyToPrivateDirectory) {
  fs::create_directories(temporary / "real");
  fs::create_symlink(temporary / "real", temporary / "a");
  directory = temporary / "a";
  EXPECT_EQ(open().unusable(), "");
  ASSERT_EQ(::chmod((temporary / "real").c_str(), 0702), 0);
  EXPECT_NE(open().unusable(), "");
  ASSERT_EQ(::chmod((temporary / "real").c_str(), 0700), 0);
  fs::rename(temporary / "real/v1/entries", temporary / "moved");
  fs::create_symlink(temporary / "moved", temporary / "real/v1/entries");
  EXPECT_NE(open().unusable().find("a/v1/entries: the cache cannot be used"), std::string::npos)
      << open().unusable();
}

TEST_F(CacheTest, RejectsFileOrSymlinkLoopAsDirectory) {
  test::write_file(temporary / "a", "");
  EXPECT_NE(open().unusable().find("Not a directory: remove it, or name"), std::string::npos)
      << open().unusable();
  directory = temporary / "a";
  EXPECT_NE(open().unusable().find("Not a directory"), std::string::npos);
  fs::create_symlink("loop\x1b", temporary / "loop\x1b");
  directory = temporary / "loop\x1b";
  EXPECT_NE(open().unusable().find("loop\\x1b: the cache cannot be used"), std::string::npos)
      << open().unusable();
}

TEST_F(CacheTest, ReportsDiskWithoutInodes) {
  const test::SmallDisk disk(temporary / "small", "nr_inodes=2,mode=700");
  SKIP_WITHOUT(disk);
  for (const char* const name : {"a", "a/b"}) {  // v1 cannot be made, then a/b
    directory = disk.place / name;
    EXPECT_EQ(open().unusable(),
              directory + (name == std::string_view("a") ? "/v1" : "") +
                  ": the cache cannot be used: no inodes are left on its file system: remove files "
                  "there, or name another directory in STFS_CACHE");
  }
}

TEST_F(CacheTest, RejectsDirectoryOwnedByOtherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  open();
  ASSERT_EQ(::chown(directory.c_str(), 1, 1), 0);
  EXPECT_NE(open().unusable().find("belongs to another user"), std::string::npos);
}

TEST_F(CacheTest, DefaultDirectoryComesFromEnvironment) {
  using Value = std::optional<std::string>;
  struct Row {
    Value stfs, xdg, home;
    std::string directory;
  };
  test::Environment environment;
  for (const auto& [stfs, xdg, home, expected] : std::vector<Row>{{"/s", "/x", "/h", "/s"},
                                                                  {"~/s", "/x", "/h", "/h/s"},
                                                                  {"~x", "/x", "/h", "~x"},
                                                                  {"", "/x", "/h", "/x/stfs"},
                                                                  {{}, "x", "/h", "/h/.cache/stfs"},
                                                                  {{}, {}, "/h", "/h/.cache/stfs"},
                                                                  {{}, {}, {}, "/.cache/stfs"}}) {
    environment.set("STFS_CACHE", stfs);
    environment.set("XDG_CACHE_HOME", xdg);
    environment.set("HOME", home);
    const std::string found = Cache::default_directory();
    EXPECT_TRUE(home ? found == expected : found.ends_with(expected)) << found;
  }
}

// --- names ---

TEST_F(CacheTest, RemembersValueOfName) {
  const std::string name = "hf://org/model", value = R"({"a":["\u0000",1]})";
  EXPECT_FALSE(open().recall(name));
  open().remember(name, value);
  EXPECT_EQ(open().recall(name), value);
  open().remember(name, "2");
  EXPECT_EQ(open().recall(name), "2");
  const fs::path names = fs::path(directory) / "v1/names";
  ASSERT_EQ(test::names_in(names).size(), 1U);
  const fs::path file = names / test::names_in(names)[0];

  open().remember("other", "3");
  for (const std::string& other : test::names_in(names)) {
    if (names / other != file) fs::rename(names / other, file);
  }
  EXPECT_FALSE(open().recall(name)) << "the file holds another name";
  for (const char* garbage :
       {"", "null", "[", R"({"name":"hf://org/model"})", R"({"name":"hf://org/model","value":3})",
        R"({"name":4,"value":""})"}) {
    test::write_file(file, garbage);
    EXPECT_FALSE(open().recall(name)) << garbage;
  }
  fs::resize_file(file, (64 << 20) + 1);
  EXPECT_FALSE(open().recall(name));
  replace_by_fifo(file);
  EXPECT_FALSE(open().recall(name));
  open().remember(name, "4");
  EXPECT_EQ(open().recall(name), "4");
}

// --- disks ---

TEST_F(CacheTest, RecreatesRemovedDirectory) {
  Cache cache = open();
  const auto entry = cache.open(version_of("a", 2 * kBlock));
  fill_all(*entry);
  fs::remove_all(directory);
  EXPECT_EQ(check(*entry, 1), 0);
  const auto other = cache.open(version_of("b", 2 * kBlock));
  ASSERT_TRUE(other);
  fill_all(*other);
  cache.remember("name", "{}");
  EXPECT_EQ(open().list().size(), 1U);
  EXPECT_EQ(open().recall("name"), "{}");
}

TEST_F(CacheTest, PruneForgetsNamesOfMissingEntries) {
  Cache cache = open();
  const RemoteVersion cached = version_of("cached", kBlock);
  const RemoteVersion missing = version_of("missing", kBlock);
  fill_all(*cache.open(cached));
  for (const RemoteVersion& version : {cached, missing}) {
    cache.remember(version.name, R"({"version":)" + json_string(to_json(version, false)) + "}");
  }
  cache.remember("listing", "{}");
  cache.prune(1 << 30);
  EXPECT_TRUE(cache.recall(cached.name));
  EXPECT_TRUE(cache.recall("listing"));
  EXPECT_FALSE(cache.recall(missing.name));
  cache.prune(0);
  EXPECT_FALSE(cache.recall(cached.name));
  EXPECT_FALSE(cache.recall("listing"));
}

TEST_F(CacheTest, ReserveReportsFullDisk) {
  const test::SmallDisk disk(directory, "size=2m,mode=700");
  SKIP_WITHOUT(disk);
  Cache cache = open();
  fill_all(*cache.open(version_of("old", 4 * kBlock)));
  const auto entry = cache.open(version_of("m", 16 * kBlock));
  ASSERT_TRUE(entry);
  std::uint64_t block = 0;
  while (fill(*entry, block) == 0) ++block;
  EXPECT_GE(block, 2U);
  EXPECT_EQ(entry->reserve(entry->range_of(block)), ENOSPC);
  EXPECT_FALSE(entry->is_there(block));
  EXPECT_TRUE(cache.make_room(kBlock)) << "the other entry is unused";
  EXPECT_EQ(fill(*entry, block), 0);
  EXPECT_FALSE(cache.make_room(8 * kBlock));
  for (std::uint64_t i = 0; i <= block; ++i) EXPECT_EQ(check(*entry, i), 0);
}

// statvfs(2) reports free bytes, so the cache notices the lack of inodes only when a call fails.
TEST_F(CacheTest, EvictsEntriesWhenInodesRunOut) {
  const test::SmallDisk disk(directory, "size=64m,nr_inodes=32,mode=700");
  SKIP_WITHOUT(disk);
  Cache cache = open();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(cache.open(version_of("m" + std::to_string(i), kBlock))) << i;
  }
  std::vector<std::unique_ptr<CacheEntry>> in_use;
  while (auto entry = cache.open(version_of("n" + std::to_string(in_use.size()), kBlock))) {
    in_use.push_back(std::move(entry));
    ASSERT_LT(in_use.size(), 32U);
  }
  EXPECT_GE(in_use.size(), 4U);
  for (const auto& entry : in_use) EXPECT_EQ(fill(*entry, 0), 0);
}

TEST_F(CacheTest, ReservedBlockCanBePublishedOnFullDisk) {
  const test::SmallDisk disk(directory, "size=2m,mode=700");
  SKIP_WITHOUT(disk);
  constexpr std::uint64_t kFar = 1000;  // has its own page of the map
  const auto entry = open().open(version_of("m", 2000 * kBlock));
  ASSERT_TRUE(entry);
  ASSERT_EQ(entry->reserve(entry->range_of(kFar)), 0);
  const UniqueFd filler(
      ::open((directory + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string page(4096, 'x');
  while (::write(filler.get(), page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(errno, ENOSPC);

  EXPECT_EQ(fill(*entry, kFar), 0);

  EXPECT_EQ(check(*entry, kFar), 0);
}

TEST_F(CacheTest, MakeRoomLeavesSpaceForMapAndFreePart) {
  const test::SmallDisk disk(directory, "size=4m,mode=700");
  SKIP_WITHOUT(disk);
  const auto left = [&] {
    struct statvfs room {};
    EXPECT_EQ(::statvfs(directory.c_str(), &room), 0);
    return room.f_bavail * room.f_frsize;
  };
  Cache all = open();
  EXPECT_FALSE(all.make_room(left())) << "the map needs space too";
  EXPECT_TRUE(all.make_room(left() - 4096));
  Cache half = open(0, 50);
  EXPECT_FALSE(half.make_room(3 << 20));
  EXPECT_TRUE(half.make_room(1 << 20));
}

TEST_F(CacheTest, ReadsFromReadOnlyDisk) {
  const test::SmallDisk disk(directory, "size=4m,mode=700");
  SKIP_WITHOUT(disk);
  const RemoteVersion version = version_of("m", 2 * kBlock);
  ASSERT_EQ(fill(*open().open(version), 1), 0);
  open().remember("name", "1");
  ASSERT_EQ(::mount("", directory.c_str(), "", MS_REMOUNT | MS_RDONLY, ""), 0);
  Cache cache = open();
  EXPECT_EQ(cache.unusable(), "");
  EXPECT_FALSE(cache.open(version_of("n", kBlock)));
  const auto entry = cache.open(version);
  ASSERT_TRUE(entry);
  EXPECT_EQ(check(*entry, 1), 0);
  EXPECT_TRUE(entry->claim(0));
  EXPECT_EQ(entry->reserve({0, kBlock}), EROFS);
  EXPECT_EQ(entry->write(0, bytes_of(*entry, 0)), EROFS);
  entry->release(0);
  EXPECT_FALSE(entry->is_there(0));
  EXPECT_EQ(cache.recall("name"), "1");
  cache.remember("name", "2");
  EXPECT_EQ(cache.recall("name"), "1");
  EXPECT_EQ(cache.list().size(), 1U);
  EXPECT_EQ(cache.prune(0), 0U);
  EXPECT_FALSE(cache.make_room(1));
}

}  // namespace
}  // namespace stfs::cache_test
