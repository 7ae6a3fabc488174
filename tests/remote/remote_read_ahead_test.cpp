// A mount fetches no more than the blocks that a reader needs, sends many requests at once for a
// sequential reader, and uses bounded memory.
#include "tests/remote/scripted_mount.h"
#include "tests/support/daemon_figures.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class RemoteReadAhead : public ScriptedMount {
 protected:
  RemoteReadAhead()
      : ScriptedMount({random_tensor("small", "U8", {16}, 1),
                       random_tensor("w", "U8", {4096, 8192}, 2),
                       random_tensor("h", "F16", {4096, 2048}, 3)}) {}

  std::uint64_t bytes_asked() const {
    std::uint64_t bytes = 0;
    for (const WebRequest& request : server_.requests()) bytes += asked_range(request)->length();
    return bytes;
  }
  // Returns the number of blocks that contain a range of the object.
  static std::uint64_t blocks_of(std::uint64_t offset, std::uint64_t length) {
    return (offset + length - 1) / kFetchBlock - offset / kFetchBlock + 1;
  }
  // Removes the cache, so that every byte has to be fetched, and returns the options of a mount.
  std::vector<std::string> cold() {
    std::filesystem::remove_all(cache());
    return options();
  }
};

TEST_F(RemoteReadAhead, TensorFetchesAtMostTwoMoreBlocksThanItsBytes) {
  const Mounted mount({url()}, cold());
  server_.forget_requests();
  EXPECT_EQ(read_file(mount / "h"), bytes_of("h"));
  EXPECT_LE(bytes_asked(), bytes_of("h").size() + 2 * kFetchBlock);
}

TEST_F(RemoteReadAhead, SliceFetchesOnlyItsBlocks) {
  for (const auto& [slice, rows] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"::1024,5:6", 4}, {"7,:", 1}}) {
    const Mounted mount({url()}, cold());
    server_.forget_requests();
    EXPECT_NE(read_file(mount / (".stfs/slice/w/" + slice)), "");
    EXPECT_LE(bytes_asked(), rows * kFetchBlock) << slice;
  }
}

TEST_F(RemoteReadAhead, RandomReaderFetchesOnlyItsBlocks) {
  for (const char* path : {"w", ".stfs/merged.safetensors", ".stfs/f32/h"}) {
    SCOPED_TRACE(path);
    const Mounted mount({url()}, cold());
    server_.forget_requests();
    const int fd = ::open((mount / path).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
    RandomBytes random(7);
    char buffer[4096];
    std::uint64_t blocks = 0;
    for (int i = 0; i < 20; ++i) {
      const std::uint64_t page = random.next() % ((24 << 20) / 4096);
      ASSERT_EQ(::pread(fd, buffer, sizeof buffer, static_cast<off_t>(page * 4096)), 4096);
      blocks += 2;  // at most, because pages and blocks are not aligned with each other
    }
    ::close(fd);
    EXPECT_LE(bytes_asked(), blocks * kFetchBlock);
    for (const auto& [block, times] : asked_blocks()) EXPECT_EQ(times, 1U) << block;
  }
}

TEST_F(RemoteReadAhead, SequentialReaderSendsConcurrentRequests) {
  for (const char* path : {"w", ".stfs/merged.safetensors", ".stfs/f32/h", ".stfs/npy/w.npy"}) {
    SCOPED_TRACE(path);
    mend();
    const Mounted near({local().string()});
    const Mounted mount({url()}, cold());
    server_.forget_requests();
    set_change([](WebAnswer& answer) { answer.delay = std::chrono::milliseconds(30); });
    EXPECT_TRUE(read_file(mount / path) == read_file(near / path));
    EXPECT_GE(server_.most_at_once(), 2U);
    for (const auto& [block, times] : asked_blocks()) EXPECT_EQ(times, 1U) << block;
  }
}

class RemoteReadAheadWithoutCache : public ScriptedMount {
 protected:
  RemoteReadAheadWithoutCache() : ScriptedMount({random_tensor("w", "U8", {8192, 8192}, 2)}) {}
};

TEST_F(RemoteReadAheadWithoutCache, GathersColumnInBoundedMemory) {
  write_file(dir_ / "file", "");
  ForegroundMount mount({url()}, {"-o", "cache_dir=" + (dir_ / "file").string()});
  const pid_t daemon = mount.process().pid();
  std::atomic<std::uint64_t> most = 0;
  set_fault([&](const WebRequest&) -> std::optional<WebAnswer> {
    const std::uint64_t resident = DaemonFigures(daemon).resident;
    for (std::uint64_t was = most; was < resident && !most.compare_exchange_weak(was, resident);) {
    }
    return std::nullopt;
  });
  std::string column;
  for (std::size_t row = 0; row < 8192; ++row) column += bytes_of("w").substr(row * 8192 + 5, 1);

  EXPECT_EQ(read_file(mount / ".stfs/slice/w/:,5:6"), column);
  EXPECT_TRUE(read_file(mount / "w") == bytes_of("w"));

#ifndef STFS_SANITIZED
  EXPECT_LT(most, 128U << 20);
#endif
  mend();
}

class RemoteHeaders : public ScriptedMount {};

TEST_F(RemoteHeaders, ShardsCostOneRequestEachAndIndexAtMostTwo) {
  std::map<std::string, std::string> map;
  for (const char* shard : {"a", "b", "c"}) {
    const std::string file = std::string(shard) + ".safetensors";
    write_safetensors(dir_ / file, {random_tensor(shard, "BF16", {1 << 19}, 5)});
    put("/" + file, {.bytes = read_file(dir_ / file)});
    map[shard] = file;
  }
  write_index(dir_ / "model.safetensors.index.json", map);
  put("/model.safetensors.index.json", {.bytes = read_file(dir_ / "model.safetensors.index.json")});
  const Outcome listed =
      run({STFS_INFO_BINARY, "list", server_.url("/model.safetensors.index.json")},
          {.environment = {"STFS_CACHE=" + cache().string()}});
  EXPECT_EQ(listed.status, 0) << listed.err;
  std::map<std::string, unsigned> asked;
  for (const WebRequest& request : server_.requests()) {
    ++asked[request.target];
    EXPECT_LE(asked_range(request)->length(), kFetchBlock);
  }
  for (const auto& [target, times] : asked) {
    EXPECT_LE(times, target.ends_with(".json") ? 2U : 1U) << target;
  }
  EXPECT_EQ(asked.size(), 4U);
}

}  // namespace
}  // namespace stfs::test
