// A CacheFile that loses fetched bytes from its cache or its memory.
#include "core/base/posix.h"
#include "tests/remote/cache_file_support.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <random>
#include <thread>
#include <vector>

namespace stfs::cache_file_test {
namespace {

class CacheFileLosses : public CacheFileTest {};

TEST_F(CacheFileLosses, MemoryIsBoundedButKeepsWantedRange) {
  network.let_go();
  const auto source = open(64 * kMiB, false);
  for (std::uint64_t at = 0; at < 64 * kMiB; at += 4 * kMiB) {
    std::promise<int> error;
    source->want({at, 4 * kMiB}, [&](int) {
      std::vector<std::byte> bytes(4 * kMiB);
      const int read = source->read_unverified(bytes, at);
      error.set_value(bytes == bytes_of({at, 4 * kMiB}) ? read : EILSEQ);
    });
    ASSERT_EQ(error.get_future().get(), 0) << at;
  }
  // A callback may want more than memory keeps otherwise.
  std::promise<int> error;
  source->want({0, 32 * kMiB}, [&](int) {
    std::vector<std::byte> bytes(32 * kMiB);
    error.set_value(source->read_unverified(bytes, 0));
  });
  EXPECT_EQ(error.get_future().get(), 0);
  Answer(*source, {63 * kMiB, kMiB}).get();
  std::uint64_t there = 0;
  for (std::uint64_t at = 0; at < 64 * kMiB; at += kBlock)
    there += source->has({at, 1}) ? kBlock : 0;
  EXPECT_LE(there, Fetcher::kMemory + 32 * kMiB);
  std::vector<std::byte> byte(1);
  for (std::uint64_t at = 0; at < 64 * kMiB; at += kBlock) {
    if (source->has({at, 1})) continue;
    EXPECT_EQ(source->read_unverified(byte, at), EAGAIN);
  }
}

// A cached file could be truncated while the kernel copies from a mapping of it, so cached bytes
// are never pinned.
TEST_F(CacheFileLosses, DoesNotPinCachedBytes) {
  network.let_go();
  const auto source = open(8 * kBlock);
  expect_bytes(*source, {0, 2 * kBlock});
  EXPECT_FALSE(source->can_pin({0, 2 * kBlock}));
  EXPECT_FALSE(source->try_pin());
}

TEST_F(CacheFileLosses, DamagedBlockIsFetchedAgain) {
  network.let_go();
  expect_bytes(*open(4 * kBlock), {0, 4 * kBlock});
  const fs::path data = entry_path() / "data";
  {
    const UniqueFd file(::open(data.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(file.get(), "x", 1, kBlock + 7), 1);
  }
  const auto source = open(4 * kBlock);
  EXPECT_TRUE(source->has({0, kBlock}));
  std::vector<std::byte> bytes(4 * kBlock);
  EXPECT_EQ(source->read_unverified(bytes, 0), EAGAIN);
  EXPECT_FALSE(source->has({0, 4 * kBlock}));
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(counters.cache_corrupt, 1U);
  EXPECT_EQ(to_text(network.seen()), "0+4 1+1 ");
}

void punch_hole(const fs::path& file, off_t offset, off_t length) {
  const UniqueFd fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length), 0);
}

// read(2) may return zeros while a file is truncated, so the reader checks the size of the file
// afterwards. It also checks the allocated blocks, because `truncate -s 0; truncate -s N` and
// `fallocate --punch-hole` leave the size unchanged.
TEST_F(CacheFileLosses, TruncatedOrPunchedDataIsFetchedAgain) {
  network.let_go();
  const auto resize = [](std::uint64_t size) {
    return [=](const fs::path& data) { fs::resize_file(data, size); };
  };
  struct Row {
    const char* name;
    std::function<void(const fs::path& data)> harm;
    bool is_seen_at_once;  // by the next read of block 1, which was cached before
  };
  for (const auto& [name, harm, is_seen_at_once] : std::vector<Row>{
           {"cut after the block", resize(2 * kBlock + 100), true},
           {"cut before the block", resize(kBlock), true},
           {"cut and grown",
            [&](const fs::path& data) {
              resize(0)(data);
              resize(4 * kBlock)(data);
            },
            true},
           {"a hole", [](const fs::path& data) { punch_hole(data, kBlock, kBlock); }, false}}) {
    SCOPED_TRACE(name);
    const auto source = open(4 * kBlock);
    expect_bytes(*source, {0, 4 * kBlock});
    harm(entry_path() / "data");
    std::vector<std::byte> bytes(kBlock);
    if (is_seen_at_once) {
      EXPECT_EQ(source->read_ahead(bytes, kBlock), EAGAIN);
    }
    expect_bytes(*source, {0, 4 * kBlock});
    expect_bytes(*source, {0, 4 * kBlock});
    EXPECT_TRUE(source->failures().empty());
  }
}

// A read of another block, which was not verified before, finds the loss.
TEST_F(CacheFileLosses, LossFoundInOneBlockInvalidatesOtherBlocks) {
  network.let_go();
  expect_bytes(*open(4 * kBlock), {0, 4 * kBlock});
  const auto source = open(4 * kBlock);
  expect_bytes(*source, {0, 100});
  fs::resize_file(entry_path() / "data", 0);
  fs::resize_file(entry_path() / "data", 4 * kBlock);
  expect_bytes(*source, {2 * kBlock, 100});
  expect_bytes(*source, {0, kBlock});
  expect_bytes(*source, {0, 4 * kBlock});
}

// Before the next read, the file grows by more than it has lost.
TEST_F(CacheFileLosses, LaterFetchDoesNotHideLoss) {
  network.let_go();
  const auto source = open(64 * kBlock);
  expect_bytes(*source, {0, 100});
  punch_hole(entry_path() / "data", 0, kBlock / 2);
  ASSERT_EQ(Answer(*source, {32 * kBlock, 16 * kBlock}).get(), 0);
  expect_bytes(*source, {0, kBlock});
}

TEST_F(CacheFileLosses, DoesNotExtendTruncatedFileInUse) {
  network.let_go();
  const auto source = open(4 * kBlock);
  expect_bytes(*source, {0, 4 * kBlock});
  fs::resize_file(entry_path() / "data", kBlock);
  Cache other({.directory = directory.string(), .size = 0, .keep_free = 0});
  EXPECT_EQ(other.open(version_of(4 * kBlock)), nullptr);
  expect_bytes(*source, {0, 4 * kBlock});  // no zeros
}

// The file is truncated after its space was reserved, so the write fails.
TEST_F(CacheFileLosses, BlockRefusedByDiskIsKeptInMemory) {
  const auto source = open(4 * kBlock);
  network.script([&](std::size_t number, ByteRange) {
    if (number == 0) fs::resize_file(entry_path() / "data", 10);
    return Reply{};
  });
  network.let_go();
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(to_text(network.seen()), "0+4 ");
  EXPECT_EQ(fs::file_size(entry_path() / "data"), 10U);
}

// A power failure may keep the map and lose the data.
TEST_F(CacheFileLosses, DataLostInPowerFailureIsFetchedAgain) {
  network.let_go();
  expect_bytes(*open(4 * kBlock), {0, 4 * kBlock});
  punch_hole(entry_path() / "data", 4096, 2 * kBlock);
  const auto source = open(4 * kBlock);
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(counters.cache_corrupt, 3U);
}

TEST_F(CacheFileLosses, ChecksPresenceOfWindowWithoutReadingIt) {
  network.let_go();
  const ByteRange window{0, 64 * kMiB};
  ASSERT_EQ(Answer(*open(64 * kMiB), window).get(), 0);
  const auto source = open(64 * kMiB);
  const auto microseconds = [](const auto& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::steady_clock::now() - begin)
                                .count());
  };
  RecordProperty("look_us", microseconds([&] { EXPECT_TRUE(source->has(window)); }));
  EXPECT_EQ(counters.cache_hits, 0U);
  RecordProperty("check_us", microseconds([&] { EXPECT_EQ(Answer(*source, window).get(), 0); }));
  EXPECT_EQ(counters.cache_hits, 256U);
  EXPECT_EQ(counters.waits, 1U);
}

TEST_F(CacheFileLosses, DroppedMemoryBlocksFailNoReader) {
  network.let_go();
  const auto source = open(64 * kMiB, false);
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < 64; ++i) {
    readers.emplace_back([&, i] {
      std::mt19937_64 random(i);
      for (int reads = 0; reads < 4; ++reads) {
        expect_bytes(*source, {random() % (62 * kMiB), kMiB + 5});
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  expect_bytes(*source, {0, 40 * kMiB});  // more than memory keeps
  EXPECT_TRUE(source->failures().empty());
}

}  // namespace
}  // namespace stfs::cache_file_test
