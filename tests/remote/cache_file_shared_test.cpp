// A CacheFile that is shared by several readers and processes.
#include "core/base/posix.h"
#include "core/remote/http/http.h"
#include "tests/remote/cache_file_support.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::cache_file_test {
namespace {

class CacheFileShared : public CacheFileTest {};

TEST_F(CacheFileShared, SmallWantIsServedDuringHugeWant) {
  start({.connections = 1});
  const auto source = open(512 * kMiB);
  Answer huge(*source, {0, 400 * kMiB});
  network.wait_for_requests(1);
  Answer small(*source, {500 * kMiB, 1});
  network.let_go(3);
  EXPECT_EQ(small.get(), 0);
  std::vector<ByteRange> seen = network.seen();
  seen.resize(3);
  EXPECT_EQ(to_text(seen), "0+32 32+32 2000+1 ");
}

TEST_F(CacheFileShared, LongCallbackDelaysNoDeadline) {
  start({.timeout = 30ms});
  const auto source = open(8 * kMiB);
  network.script([](std::size_t number, ByteRange) { return Reply{.stall = number > 0}; });
  network.let_go();
  std::promise<void> entered, leave;
  source->want({0, 1}, [&](int) {
    entered.set_value();
    leave.get_future().wait();
  });
  entered.get_future().wait();
  network.always({.cut_after = 5, .stall = true});
  EXPECT_EQ(Answer(*source, {4 * kMiB, 1}).get(), EIO);
  leave.set_value();
  network.end_stalls(EIO);
}

TEST_F(CacheFileShared, FetchesBlocksClaimedByStoppedProcess) {
  start({.patience = 20ms});
  const RemoteVersion version = version_of(4 * kBlock);
  const auto other = cache.open(version);
  ASSERT_TRUE(other->claim(1));
  network.let_go();
  const auto source = open(version.size);
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(to_text(network.seen()), "0+1 2+2 1+1 ");
  EXPECT_FALSE(other->is_there(1));
}

TEST_F(CacheFileShared, WaitsForStoppedProcessOnlyOnce) {
  start({.patience = 2s});
  const RemoteVersion version = version_of(5 * kBlock);
  const auto other = cache.open(version);
  for (const std::uint64_t block : {1U, 2U, 3U, 4U}) ASSERT_TRUE(other->claim(block));
  network.let_go();
  const auto source = open(version.size);
  expect_bytes(*source, {kBlock, kBlock});

  const auto begin = std::chrono::steady_clock::now();
  for (const std::uint64_t block : {2U, 3U, 4U}) expect_bytes(*source, {block * kBlock, kBlock});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "each waited for 2 s";
}

TEST_F(CacheFileShared, StoppedProcessFailsNoReadWithShortTimeout) {
  start({.timeout = 4s, .patience = 1h});
  const RemoteVersion version = version_of(kBlock);
  const auto other = cache.open(version);
  ASSERT_TRUE(other->claim(0));
  network.let_go();
  const auto source = open(version.size);
  EXPECT_EQ(Answer(*source, {0, kBlock}).get(), 0);
}

TEST_F(CacheFileShared, DoesNotRequestBlockClaimedByOtherProcess) {
  const RemoteVersion version = version_of(4 * kBlock);
  auto other = cache.open(version);
  ASSERT_TRUE(other->claim(1));
  network.let_go();
  const auto source = open(version.size);
  Answer all(*source, {0, 4 * kBlock});
  Answer first(*source, {0, kBlock});
  EXPECT_EQ(first.get(), 0);
  network.wait_for_requests(2);
  EXPECT_EQ(to_text(network.seen()), "0+1 2+2 ");
  // The other process delivers block 1.
  ASSERT_EQ(other->write(1, bytes_of(other->range_of(1))), 0);
  EXPECT_EQ(all.get(), 0);
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(network.seen().size(), 2U);
}

TEST_F(CacheFileShared, ReleasesClaimsWhileRequestWaitsForRetry) {
  start({.timeout = 1h, .patience = 1h});
  network.always({.status = 503, .retry_after = "3600"});
  network.let_go();
  const auto source = open(4 * kBlock);
  const auto other = cache.open(version_of(4 * kBlock));
  Answer all(*source, {0, 4 * kBlock});
  network.wait_for_requests(1);
  for (std::uint64_t block = 0; block < 4; ++block) {
    EXPECT_TRUE(test::eventually([&] { return other->claim(block); }, 20s)) << block;
  }
  EXPECT_FALSE(all.is_there());
}

TEST_F(CacheFileShared, TakesOverReleasedClaim) {
  const RemoteVersion version = version_of(4 * kBlock);
  auto other = cache.open(version);
  for (const std::uint64_t block : {0U, 1U, 2U}) ASSERT_TRUE(other->claim(block));
  network.let_go();
  const auto source = open(version.size);
  Answer all(*source, {0, 4 * kBlock});
  network.wait_for_requests(1);
  EXPECT_EQ(to_text(network.seen()), "3+1 ");
  other.reset();
  EXPECT_EQ(all.get(), 0);
  EXPECT_EQ(to_text(network.seen()), "3+1 0+3 ");
}

// Reads random ranges like the mount: wants a range again if memory dropped it or its fetch failed.
void read_randomly(const Source& source, unsigned seed, int reads, std::uint64_t longest) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < reads; ++i) {
    const std::uint64_t offset = random() % source.size();
    const ByteRange range{offset, std::min(source.size() - offset, 1 + random() % longest)};
    if (random() % 4 == 0) source.prefetch({range.offset, 4 * range.length});
    std::vector<std::byte> bytes(range.length);
    // Reads in the callback, because memory keeps the wanted bytes until the callback returns.
    int error = EAGAIN;
    while (error != 0) {
      std::promise<int> done;
      source.want(range, [&](int answer) {
        done.set_value(answer != 0 ? answer : source.read_unverified(bytes, offset));
      });
      error = done.get_future().get();
    }
    ASSERT_TRUE(bytes == bytes_of(range)) << range.offset << "+" << range.length;
  }
}

class RandomReads : public CacheFileTest, public testing::WithParamInterface<bool> {};

TEST_P(RandomReads, ReturnRightBytesDespiteNetworkErrors) {
  network.script([random = std::mt19937_64(7)](std::size_t, ByteRange range) mutable {
    switch (random() % 16) {
      case 0: return Reply{.status = 0, .error = EIO};
      case 1:
      case 2: return Reply{.cut_after = random() % range.length, .error = EIO};
      case 3: return Reply{.cut_after = random() % range.length};
      case 4: return Reply{.status = 503};
      case 5: return Reply{.status = 403};
      case 6: return Reply{.status = 200};
      default: return Reply{};
    }
  });
  network.let_go();
  const auto source = open(32 * kMiB + 4321, GetParam());
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < 64; ++i) {
    readers.emplace_back([&, i] { read_randomly(*source, i, 6, kMiB / 2); });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_FALSE(source->has_changed());
}

INSTANTIATE_TEST_SUITE_P(CacheFile, RandomReads, testing::Bool(),
                         [](const auto& is) { return is.param ? "Cached" : "InMemory"; });

TEST_F(CacheFileShared, FetchesOverHttpDespiteCutResponses) {
  const std::map<std::string, test::WebObject> objects{
      {"/object", {.bytes = text_of({0, 12 * kMiB + 5})}}};
  std::atomic<unsigned> count = 0;
  test::HttpServer server([&](const test::WebRequest& request) {
    test::WebAnswer answer = answer_object(request, objects);
    if (++count % 3 == 0) answer.cut_after = answer.body.size() / 2;
    return answer;
  });
  struct WebRemote final : TestRemote {
    WebRemote(std::shared_ptr<Shared> given, std::string at)
        : TestRemote(std::move(given)), url(std::move(at)) {}
    HttpRequest request(ByteRange range) override {
      HttpRequest request{.url = url};
      request.range = range;
      return request;
    }
    std::string url;
  };
  Http http(Http::Options{});
  Fetcher over_http({}, http, cache);
  const RemoteVersion version = version_of(12 * kMiB + 5);
  const CacheFile source(version, std::make_unique<WebRemote>(remote, server.url("/object")),
                         cache.open(version), over_http);
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < 8; ++i) {
    readers.emplace_back([&, i] { read_randomly(source, i, 8, kMiB); });
  }
  for (std::thread& reader : readers) reader.join();
  expect_bytes(source, {0, source.size()});
  EXPECT_TRUE(source.is_complete());
}

TEST_F(CacheFileShared, FullDiskFailsNoReader) {
  const test::SmallDisk disk(temporary / "small", "size=3m,mode=700");
  SKIP_WITHOUT(disk);
  network.let_go();
  Cache small({.directory = (disk.place / "cache").string(), .size = 0, .keep_free = 0});
  ASSERT_EQ(small.unusable(), "");
  Fetcher with_small({}, network, small);
  const RemoteVersion version = version_of(24 * kMiB);
  auto entry = small.open(version);
  ASSERT_TRUE(entry);
  const CacheFile source(version, std::make_unique<TestRemote>(remote), std::move(entry),
                         with_small);
  expect_bytes(source, {0, 2 * kMiB});
  EXPECT_TRUE(source.has({0, 2 * kMiB}));
  for (std::uint64_t at = 0; at < source.size(); at += 2 * kMiB)
    expect_bytes(source, {at, 2 * kMiB});
  read_randomly(source, 1, 20, kMiB);
  EXPECT_TRUE(source.has({0, 2 * kMiB}));
  EXPECT_TRUE(source.failures().empty());
}

TEST_F(CacheFileShared, ReadsObjectLargerThanCacheLimit) {
  network.let_go();
  Cache small({.directory = (temporary / "small").string(), .size = 4 * kMiB, .keep_free = 0});
  Fetcher with_small({}, network, small);
  const RemoteVersion version = version_of(24 * kMiB);
  const CacheFile source(version, std::make_unique<TestRemote>(remote), small.open(version),
                         with_small);
  for (std::uint64_t at = 0; at < source.size(); at += kMiB) expect_bytes(source, {at, kMiB});
  expect_bytes(source, {0, source.size()});
  EXPECT_TRUE(source.failures().empty());
  EXPECT_LE(small.list().at(0).bytes, 4 * kMiB + kBlock);
  EXPECT_GE(small.list().at(0).blocks_there, 1U);
}

// The child processes are forked before this process has threads.
class CacheFileProcesses : public testing::Test {
 protected:
  template <class Body>
  static pid_t in_child(Body body) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  static RemoteVersion version_of(std::uint64_t size) {
    RemoteVersion version;
    version.name = version.url = "https://host/object";
    version.size = size;
    version.token = "web-1";
    return version;
  }
  Cache::Options options() const {
    return {.directory = (temporary / "cache").string(), .size = 0, .keep_free = 0};
  }

  test::TempDir temporary;
  std::shared_ptr<TestRemote::Shared> remote = std::make_shared<TestRemote::Shared>();
};

TEST_F(CacheFileProcesses, FetchEachBlockOnce) {
  const RemoteVersion version = version_of(20 * kMiB + 1);
  const UniqueFd counts(::memfd_create("fetched", MFD_CLOEXEC));
  const auto body = [&] {
    Network network;
    network.script([&](std::size_t, ByteRange range) {
      for (std::uint64_t at = 0; at < range.length; at += kBlock) {
        EXPECT_EQ(::write(counts.get(), "x", 1), 1);
      }
      return Reply{};
    });
    Cache cache(options());
    Fetcher fetcher({}, network, cache);
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        const CacheFile source(version, std::make_unique<TestRemote>(remote), cache.open(version),
                               fetcher);
        std::vector<std::byte> bytes(version.size);
        EXPECT_EQ(source.read(bytes, 0), 0);
        EXPECT_TRUE(bytes == bytes_of({0, version.size}));
      });
    }
    for (std::thread& reader : readers) reader.join();
  };
  const pid_t children[] = {in_child(body), in_child(body)};
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(::lseek(counts.get(), 0, SEEK_CUR), 81);
}

TEST_F(CacheFileProcesses, KilledWhileFillingLeaveNoZerosAndNoClaims) {
  const RemoteVersion version = version_of(8 * kMiB);
  for (unsigned seed = 0; seed < 4; ++seed) {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    const UniqueFd from(pipe[0]);
    {
      UniqueFd to(pipe[1]);
      const pid_t child = in_child([&] {
        Network network;
        network.script([seed](std::size_t, ByteRange range) {
          return Reply{.cut_after = std::min(range.length - 1, (seed + 1) * 555'555UL),
                       .stall = true};
        });
        Cache cache(options());
        Fetcher fetcher({}, network, cache);
        const CacheFile source(version, std::make_unique<TestRemote>(remote), cache.open(version),
                               fetcher);
        source.want({0, version.size}, [](int) {});
        network.wait_for_stalls(1);
        EXPECT_EQ(::write(to.get(), "x", 1), 1);
        ::pause();
      });
      char byte = 0;
      ASSERT_EQ(::read(from.get(), &byte, 1), 1);
      ::kill(child, SIGKILL);
      ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    }
    Network network(true);
    Cache cache(options());
    Fetcher fetcher({}, network, cache);
    const CacheFile source(version, std::make_unique<TestRemote>(remote), cache.open(version),
                           fetcher);
    std::uint64_t there = 0;
    for (std::uint64_t at = 0; at < version.size; at += kBlock) {
      if (!source.has({at, kBlock})) continue;
      std::vector<std::byte> bytes(kBlock);
      EXPECT_EQ(source.read_unverified(bytes, at), 0);
      EXPECT_TRUE(bytes == bytes_of({at, kBlock}));
      ++there;
    }
    EXPECT_GE(there, (seed + 1) * 555'555 / kBlock);
    network.let_go();
    if (seed < 3) continue;  // the next child continues with this entry
    std::vector<std::byte> bytes(version.size);
    EXPECT_EQ(source.read(bytes, 0), 0);
    EXPECT_TRUE(bytes == bytes_of({0, version.size}));
  }
}

}  // namespace
}  // namespace stfs::cache_file_test
