// A source that a network fills, with a network of the test's own: each answer is scripted.
#include "core/remote/cache/cache_file.h"

#include "core/base/posix.h"
#include "core/remote/cache/fetcher.h"
#include "core/remote/http/http.h"
#include "tests/remote/remote_support.h"
#include "tests/support/files.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::cache_file_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
constexpr std::uint64_t kBlock = CacheEntry::kBlock;
constexpr std::uint64_t kMiB = 1 << 20;

// Byte `at` of every object: none is 0, and no two blocks are equal.
std::byte byte_at(std::uint64_t at) {
  std::uint64_t x = at / 8 * 0x9E3779B97F4A7C15 + 1;
  x ^= x >> 31;
  return static_cast<std::byte>((x >> (at % 8 * 8)) | 1);
}

std::vector<std::byte> bytes_of(ByteRange range) {
  std::vector<std::byte> bytes(range.length);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(range.offset + i);
  return bytes;
}

std::string text_of(ByteRange range) {
  const std::vector<std::byte> bytes = bytes_of(range);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What is answered to a request.
struct Reply {
  int status = 206;
  std::uint64_t cut_after = std::numeric_limits<std::uint64_t>::max();  // bytes of the body
  std::uint64_t surplus = 0;                                            // more than were asked for
  int error = 0;                                                        // of the end
  bool stall = false;  // no end comes until the network is told to end
  std::string retry_after = {};
};

// Answers on a thread of its own, one request at a time, as Http calls back. While it is held,
// requests are only kept.
class Network : public Http {
 public:
  explicit Network(bool is_held = false) : Http(Options{}), is_held_(is_held) {
    thread_ = std::thread([this] { run(); });
  }
  ~Network() override {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
    for (Pending& pending : stalled_) pending.callbacks.end({ECANCELED, "ended"});
    for (Pending& pending : pending_) pending.callbacks.end({ECANCELED, "ended"});
  }

  void start(HttpRequest request, HttpCallbacks callbacks) override {
    std::unique_lock lock(mutex_);
    seen_.push_back(*request.range);
    limits_.push_back(request.limit);
    pending_.push_back({std::move(request), std::move(callbacks)});
    changed_.notify_all();
    lock.unlock();
    look();
  }

  // Ends what was abandoned: what stalls, and what is held.
  void look() override {
    std::deque<Pending> ended;
    {
      const std::lock_guard lock(mutex_);
      for (auto* all : {&stalled_, &pending_}) {
        for (auto at = all->begin(); at != all->end();) {
          if (!at->request.is_abandoned || !*at->request.is_abandoned) {
            ++at;
            continue;
          }
          ended.push_back(std::move(*at));
          at = all->erase(at);
        }
      }
    }
    for (Pending& pending : ended) pending.callbacks.end({ECANCELED, "abandoned"});
  }

  // From now on; the argument is the number of the request, from 0.
  void script(std::function<Reply(std::size_t number, ByteRange range)> script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void always(const Reply& reply) {
    script([=](std::size_t, ByteRange) { return reply; });
  }
  void first(const Reply& reply) {
    script([=](std::size_t number, ByteRange) { return number == 0 ? reply : Reply{}; });
  }
  void let_go(std::size_t requests = std::numeric_limits<std::size_t>::max()) {
    const std::lock_guard lock(mutex_);
    is_held_ = requests == 0;
    allowed_ = requests;
    changed_.notify_all();
  }
  // Ends the transfers that stall.
  void end_stalls(int error) {
    std::deque<Pending> stalled;
    {
      const std::lock_guard lock(mutex_);
      stalled.swap(stalled_);
    }
    for (Pending& pending : stalled) pending.callbacks.end({error, "stalled"});
  }
  void wait_for_requests(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return seen_.size() >= count; });
  }
  // Until so many have begun, since the first request: a deadline may end one at once.
  void wait_for_stalls(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stalls_ >= count; });
  }
  std::size_t stalls() const {
    const std::lock_guard lock(mutex_);
    return stalls_;
  }
  std::vector<std::chrono::milliseconds> limits() const {
    const std::lock_guard lock(mutex_);
    return limits_;
  }
  std::vector<ByteRange> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  struct Pending {
    HttpRequest request;
    HttpCallbacks callbacks;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock,
                    [&] { return is_ending_ || (!is_held_ && allowed_ > 0 && !pending_.empty()); });
      if (is_ending_) return;
      Pending pending = std::move(pending_.front());
      pending_.pop_front();
      if (allowed_ != std::numeric_limits<std::size_t>::max()) --allowed_;
      const ByteRange range = *pending.request.range;
      const Reply reply = script_ ? script_(answered_, range) : Reply{};
      ++answered_;
      lock.unlock();
      const bool has_stalled = answer(pending, range, reply);
      lock.lock();
      // Abandoned while it was answered: look() has not found it.
      const bool is_abandoned = pending.request.is_abandoned && *pending.request.is_abandoned;
      if (has_stalled && is_abandoned) {
        lock.unlock();
        pending.callbacks.end({ECANCELED, "abandoned"});
        lock.lock();
      } else if (has_stalled) {
        stalled_.push_back(std::move(pending));
        ++stalls_;
      }
      changed_.notify_all();
    }
  }

  // Returns whether it stalls.
  static bool answer(Pending& pending, ByteRange range, const Reply& reply) {
    const HttpCallbacks& callbacks = pending.callbacks;
    if (reply.status == 0) {
      callbacks.end({reply.error, "no connection"});
      return false;
    }
    HttpHead head{.status = reply.status, .url = pending.request.url, .headers = {}};
    if (!reply.retry_after.empty()) head.headers.emplace_back("retry-after", reply.retry_after);
    if (!callbacks.head(head)) {
      callbacks.end({ECANCELED, ""});
      return false;
    }
    const std::uint64_t length = std::min(range.length + reply.surplus, reply.cut_after);
    constexpr std::uint64_t kPiece = 100'003;  // no multiple of anything
    for (std::uint64_t at = 0; at < length; at += kPiece) {
      const auto piece = bytes_of({range.offset + at, std::min(kPiece, length - at)});
      if (callbacks.data(piece)) continue;
      callbacks.end({ECANCELED, ""});
      return false;
    }
    if (reply.stall) return true;
    callbacks.end({reply.error, reply.error == 0 ? "" : "broken"});
    return false;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_, is_ending_ = false;
  std::size_t allowed_ = std::numeric_limits<std::size_t>::max();
  std::size_t answered_ = 0, stalls_ = 0;
  std::function<Reply(std::size_t, ByteRange)> script_;
  std::vector<ByteRange> seen_;
  std::vector<std::chrono::milliseconds> limits_;
  std::deque<Pending> pending_, stalled_;
  std::thread thread_;
};

// The verdicts by status alone.
struct TestRemote : Remote {
  struct Shared {
    std::atomic<int> renewals = 0;
    std::atomic<bool> can_renew = true;
    std::atomic<bool> has_credentials = true;
  };
  explicit TestRemote(std::shared_ptr<Shared> given) : shared(std::move(given)) {}

  HttpRequest request(ByteRange range) override {
    if (!shared->has_credentials) throw Error(ErrorCode::kUnreadable, "s3://b/k", "no credentials");
    HttpRequest request{.url = "https://host/object"};
    request.range = range;
    return request;
  }
  Verdict judge(const HttpHead& head, ByteRange) const override {
    switch (head.status) {
      case 206:
        return {Verdict::Kind::kAccept};
      case 503:
        return {Verdict::Kind::kRetry, "503 Slow Down"};
      case 403:
        return {Verdict::Kind::kRenew, "403 Forbidden"};
      case 412:
        return {Verdict::Kind::kChanged, "the object has changed"};
      default:
        return {Verdict::Kind::kRefused, "the server ignores ranges"};
    }
  }
  bool renew() override {
    ++shared->renewals;
    return shared->can_renew;
  }

  std::shared_ptr<Shared> shared;
};

// The result of a want().
class Answer {
 public:
  Answer(const Source& source, ByteRange range) : future_(promise_->get_future()) {
    source.want(range, [promise = promise_](int error) { promise->set_value(error); });
  }
  int get() { return future_.get(); }
  bool is_there() const { return future_.wait_for(0s) == std::future_status::ready; }

 private:
  std::shared_ptr<std::promise<int>> promise_ = std::make_shared<std::promise<int>>();
  std::future<int> future_;
};

// Whether one of many tries in a row brings a range.
bool arrives(const Source& source, ByteRange range) {
  for (int tries = 0; tries < 200; ++tries) {
    if (Answer(source, range).get() == 0) return true;
  }
  return false;
}

class CacheFileTest : public testing::Test {
 protected:
  static RemoteVersion version_of(std::uint64_t size) {
    RemoteVersion version;
    version.name = "https://host/object";
    version.url = version.name;
    version.size = size;
    version.mtime = {1234, 0};
    version.token = "web-1";
    return version;
  }
  void start(const Fetcher::Options& options = {}) {
    fetcher.reset();
    Fetcher::Options with = options;
    with.counters = &counters;
    fetcher = std::make_unique<Fetcher>(with, network, cache);
  }
  std::unique_ptr<CacheFile> open(std::uint64_t size, bool has_cache = true,
                                  std::string_view first = {}) {
    if (!fetcher) start();
    const RemoteVersion version = version_of(size);
    return std::make_unique<CacheFile>(version, std::make_unique<TestRemote>(remote),
                                       has_cache ? cache.open(version) : nullptr, *fetcher, first);
  }
  static void expect_bytes(const Source& source, ByteRange range) {
    std::vector<std::byte> bytes(range.length);
    ASSERT_EQ(source.read(bytes, range.offset), 0) << range.offset << "+" << range.length;
    ASSERT_TRUE(bytes == bytes_of(range)) << range.offset << "+" << range.length;
  }
  // Wants a range in vain until a transfer stalls. On a busy machine a short deadline may come
  // before the first request or its bytes.
  void miss(const Source& source, ByteRange range) {
    const std::size_t before = network.stalls();
    do {
      EXPECT_EQ(Answer(source, range).get(), EIO);
    } while (network.stalls() == before);
  }
  fs::path entry_path() const {
    for (const auto& entry : fs::directory_iterator(directory / "v1/entries")) return entry.path();
    return {};
  }

  test::TempDir temporary;
  fs::path directory = temporary / "cache";
  Counters counters;
  std::shared_ptr<TestRemote::Shared> remote = std::make_shared<TestRemote::Shared>();
  Cache cache{{.directory = directory.string(), .size = 0, .keep_free = 0}};
  Network network{true};
  std::unique_ptr<Fetcher> fetcher;
};

std::string to_text(const std::vector<ByteRange>& ranges) {  // in blocks
  std::string text;
  for (const auto& [offset, length] : ranges) {
    text += std::to_string(offset / kBlock) + "+" + std::to_string((length + kBlock - 1) / kBlock) +
            " ";
  }
  return text;
}

TEST_F(CacheFileTest, WhatIsWantedComesAndStays) {
  network.let_go();
  {
    const auto source = open(10 * kBlock + 77);
    EXPECT_EQ(source->size(), 10 * kBlock + 77);
    EXPECT_EQ(source->token(), "web-1");
    EXPECT_EQ(source->mtime().tv_sec, 1234);
    EXPECT_FALSE(source->has({0, 1}));
    EXPECT_FALSE(source->is_complete());
    expect_bytes(*source, {3 * kBlock - 5, 10});
    EXPECT_TRUE(source->has({2 * kBlock, 2 * kBlock}));
    EXPECT_FALSE(source->has({2 * kBlock, 2 * kBlock + 1}));
    expect_bytes(*source, {0, source->size()});
    EXPECT_TRUE(source->is_complete());
    EXPECT_EQ(source->verify(), 0);
  }
  EXPECT_EQ(to_text(network.seen()), "2+2 0+2 4+7 ");
  const auto source = open(10 * kBlock + 77);
  EXPECT_TRUE(source->has({0, source->size()}));
  EXPECT_EQ(counters.cache_hits, 0U);  // nothing was read to tell
  expect_bytes(*source, {0, source->size()});
  EXPECT_TRUE(source->is_complete());
  EXPECT_EQ(network.seen().size(), 3U);
  EXPECT_EQ(counters.cache_hits, 11U);
}

TEST_F(CacheFileTest, WhatCameWithTheAnswerIsNotFetched) {
  for (const bool has_cache : {true, false}) {
    const auto source = open(3 * kBlock, has_cache, text_of({0, 2 * kBlock + 9}));
    EXPECT_TRUE(source->has({0, 2 * kBlock}));
    EXPECT_FALSE(source->has({0, 2 * kBlock + 1}));
    expect_bytes(*source, {5, 2 * kBlock - 5});
  }
  const auto small = open(9, false, text_of({0, 100}));
  EXPECT_TRUE(small->is_complete());
  expect_bytes(*small, {0, 9});
  EXPECT_TRUE(open(0)->is_complete());
  EXPECT_EQ(to_text(network.seen()), "");
}

TEST_F(CacheFileTest, WhatCameWithTheAnswerIsNotCachedWithoutRoom) {
  start();
  const RemoteVersion version = version_of(2 * kBlock);
  {
    const CacheFile source(version, std::make_unique<TestRemote>(remote), cache.open(version),
                           *fetcher, text_of({0, kBlock}), false);
    expect_bytes(source, {0, kBlock});
  }
  EXPECT_FALSE(cache.open(version)->is_there(0));
}

TEST_F(CacheFileTest, ARangeOutsideTheObjectIsRefused) {
  const auto source = open(2 * kBlock);
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  for (const ByteRange range :
       {ByteRange{2 * kBlock, 1}, {0, kMost}, {kMost, 2}, {1, 2 * kBlock}}) {
    EXPECT_FALSE(source->has(range));
    EXPECT_EQ(Answer(*source, range).get(), EINVAL);
    EXPECT_FALSE(source->can_pin(range));
    source->prefetch({kMost, kMost});
  }
  EXPECT_EQ(Answer(*source, {2 * kBlock, 0}).get(), 0);
  EXPECT_TRUE(network.seen().empty());
  EXPECT_THROW(open(std::uint64_t{1} << 62, false), Error);
}

TEST_F(CacheFileTest, NeighboursAreOneRequestAndDemandGoesFirst) {
  start({.connections = 1});
  const auto source = open(64 * kMiB);
  source->prefetch({0, kMiB});
  network.wait_for_requests(1);
  source->prefetch({32 * kMiB, 16 * kMiB});
  Answer first(*source, {8 * kMiB, 2 * kMiB});
  Answer second(*source, {10 * kMiB, kMiB});  // behind it
  Answer third(*source, {48 * kMiB - 1, 2});  // its first half is queued ahead
  Answer fourth(*source, {31 * kMiB, kMiB});  // what is ahead follows
  network.let_go();
  for (Answer* answer : {&first, &second, &third, &fourth}) EXPECT_EQ(answer->get(), 0);
  network.wait_for_requests(6);
  // In blocks of 256 KiB: 12 for the first two, 2 for the third, then 32 from 31 MiB, then the rest
  // of what is ahead.
  EXPECT_EQ(to_text(network.seen()), "0+4 32+12 191+2 124+32 156+32 188+3 ");
}

TEST_F(CacheFileTest, AWindowFillsAllConnections) {
  const auto source = open(200 * kMiB);
  source->prefetch({0, 64 * kMiB});
  network.wait_for_requests(8);
  EXPECT_EQ(to_text(network.seen()), "0+32 32+32 64+32 96+32 128+32 160+32 192+32 224+32 ");
}

TEST_F(CacheFileTest, WhatIsQueuedAheadIsBounded) {
  start({.connections = 1});
  const auto source = open(200 * kMiB);
  source->prefetch({0, kBlock});
  network.wait_for_requests(1);
  source->prefetch({kMiB, 199 * kMiB});       // 64 MiB of it
  source->prefetch({100 * kMiB, 60 * kMiB});  // so 4 MiB of the first stay
  network.let_go();
  network.wait_for_requests(10);
  EXPECT_EQ(to_text(network.seen()),
            "0+1 244+16 400+32 432+32 464+32 496+32 528+32 560+32 592+32 624+16 ");
}

TEST_F(CacheFileTest, WithoutACacheLittleIsFetchedAhead) {
  start({.connections = 1});
  const auto source = open(64 * kMiB, false);
  source->prefetch({0, 64 * kMiB});
  network.let_go();
  EXPECT_EQ(Answer(*source, {63 * kMiB, kMiB}).get(), 0);
  EXPECT_EQ(Answer(*source, {0, 4 * kMiB}).get(), 0);
  std::uint64_t bytes = 0;
  for (const ByteRange& range : network.seen()) bytes += range.length;
  EXPECT_EQ(bytes, 5 * kMiB);
}

TEST_F(CacheFileTest, ReadersAreAnsweredBlockByBlock) {
  const auto source = open(8 * kMiB);
  network.always({.cut_after = 3 * kBlock + 5, .stall = true});
  Answer all(*source, {0, 8 * kMiB});
  Answer three(*source, {0, 3 * kBlock});
  Answer four(*source, {3 * kBlock, 1});
  network.let_go();
  EXPECT_EQ(three.get(), 0);
  EXPECT_FALSE(four.is_there());
  EXPECT_FALSE(all.is_there());
  EXPECT_EQ(to_text(network.seen()), "0+32 ");
  network.script({});
  network.wait_for_stalls(1);
  network.end_stalls(ETIMEDOUT);
}

TEST_F(CacheFileTest, ABrokenTransferKeepsTheBlocksThatCame) {
  const auto source = open(kMiB);
  network.script([](std::size_t number, ByteRange) {
    if (number == 0) return Reply{.cut_after = 2 * kBlock + 77, .error = EIO};
    if (number == 1) return Reply{.status = 0, .error = ETIMEDOUT};
    if (number == 2) return Reply{.status = 503};
    if (number == 3) return Reply{.cut_after = kBlock};  // no error, but short
    return Reply{};
  });
  network.let_go();
  expect_bytes(*source, {0, kMiB});
  EXPECT_EQ(to_text(network.seen()), "0+4 2+2 2+2 2+2 3+1 ");
  EXPECT_EQ(counters.retries, 4U);
  EXPECT_TRUE(source->failures().empty());
}

TEST_F(CacheFileTest, OfABlockThatBrokeOnlyTheRestIsAskedFor) {
  for (const bool has_cache : {true, false}) {
    const auto source = open(kMiB, has_cache);
    const std::size_t before = network.seen().size();
    network.always({.cut_after = 200'000, .error = EIO});
    network.let_go();

    expect_bytes(*source, {0, kMiB});

    std::vector<std::uint64_t> offsets;
    for (const ByteRange& range : network.seen()) offsets.push_back(range.offset);
    offsets.erase(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(before));
    EXPECT_EQ(offsets,
              (std::vector<std::uint64_t>{0, 200'000, 400'000, 600'000, 800'000, 1'000'000}));
  }
  EXPECT_EQ(counters.bytes_fetched, 0U);  // Http's
  const auto again = open(kMiB);
  expect_bytes(*again, {0, kMiB});  // the checksums are those of the bytes
  EXPECT_EQ(counters.cache_faults, 0U);
}

TEST_F(CacheFileTest, APartThatTheDiskLostIsAskedForAgain) {
  start({.timeout = 30ms});
  const auto source = open(kMiB);
  network.always({.cut_after = 100'000, .stall = true});
  network.let_go();
  miss(*source, {0, kBlock});
  fs::resize_file(entry_path() / "data", 50'000);
  fs::resize_file(entry_path() / "data", kMiB);
  network.script({});

  EXPECT_TRUE(arrives(*source, {0, kBlock}));

  EXPECT_EQ(network.seen()[1].offset, 0U);
  expect_bytes(*source, {0, kBlock});
}

// The disk has room for the block once: the second time it comes to memory.
TEST_F(CacheFileTest, APartOnTheDiskIsNoPartOfABlockInMemory) {
  Cache small(
      {.directory = (temporary / "small").string(), .size = kBlock + (32 << 10), .keep_free = 0});
  Fetcher with_small({.timeout = 30ms}, network, small);
  const RemoteVersion version = version_of(kMiB);
  const CacheFile source(version, std::make_unique<TestRemote>(remote), small.open(version),
                         with_small);
  network.always({.cut_after = 100'000, .stall = true});
  network.let_go();
  miss(source, {0, kBlock});
  network.script({});

  EXPECT_TRUE(arrives(source, {0, kBlock}));

  expect_bytes(source, {0, kBlock});
  EXPECT_EQ(small.list().at(0).blocks_there, 0U);
}

TEST_F(CacheFileTest, PartsInMemoryAreFew) {
  constexpr std::uint64_t kParts = 9;  // one more than are kept
  start({.timeout = 30ms});
  const auto source = open(32 * kMiB, false);
  network.always({.cut_after = 5, .stall = true});
  network.let_go();
  for (std::uint64_t i = 0; i < kParts; ++i) miss(*source, {i * kMiB, 1});
  network.script({});
  for (const std::uint64_t i : {kParts - 1, std::uint64_t{0}}) {
    EXPECT_TRUE(arrives(*source, {i * kMiB, 1}));
    EXPECT_EQ(network.seen().back().offset, i * kMiB + (i == 0 ? 0 : 5));
    expect_bytes(*source, {i * kMiB, kBlock});
  }
}

TEST_F(CacheFileTest, AServerThatAsksForAnHourIsAskedAgainAfterTheDeadline) {
  start({.timeout = 30ms});
  const auto source = open(kMiB);
  network.first({.status = 503, .retry_after = "3600"});
  network.let_go();

  EXPECT_TRUE(arrives(*source, {0, 1}));
}

TEST_F(CacheFileTest, ATransferEndsWhenNobodyWaitsForItAndTheNextAsksAnew) {
  start({.timeout = 30ms, .longest = 5min});
  const auto source = open(kMiB);
  network.always({.cut_after = 100'000, .stall = true});
  network.let_go();
  miss(*source, {0, kBlock});
  network.script({});

  EXPECT_TRUE(arrives(*source, {0, kBlock}));

  expect_bytes(*source, {0, kBlock});
  EXPECT_EQ(network.seen()[1].offset, 100'000U);
  EXPECT_EQ(network.limits()[0], 5min);
}

TEST_F(CacheFileTest, WhatIsFetchedAheadLeavesAConnectionToAReaderWhoWaitedInVain) {
  start({.timeout = 30ms, .connections = 2});
  const auto source = open(64 * kMiB);
  network.always({.cut_after = 5, .stall = true});
  network.let_go();
  source->prefetch({0, 32 * kMiB});
  network.wait_for_stalls(2);
  EXPECT_EQ(Answer(*source, {40 * kMiB, 1}).get(), EIO);
  network.script({});

  EXPECT_TRUE(arrives(*source, {40 * kMiB, 1}));

  expect_bytes(*source, {40 * kMiB, 1});
}

TEST_F(CacheFileTest, AnOldTransferEndsThoughOthersWaitForItToo) {
  start({.timeout = 2s});
  const auto source = open(kMiB);
  network.first({.cut_after = 100'000, .stall = true});
  network.let_go();
  Answer first(*source, {0, kBlock});
  network.wait_for_stalls(1);
  std::this_thread::sleep_for(1s);  // so that the second waits longer than the first
  Answer second(*source, {0, kBlock});
  EXPECT_EQ(first.get(), EIO);
  EXPECT_EQ(second.get(), 0);
}

TEST_F(CacheFileTest, AStalledTransferHoldsUpNobodyElse) {
  const auto source = open(8 * kMiB);
  network.first({.cut_after = 5, .stall = true});
  network.let_go();
  Answer stalled(*source, {0, 1});
  network.wait_for_stalls(1);
  expect_bytes(*source, {4 * kMiB, kMiB});
  EXPECT_FALSE(stalled.is_there());
  network.end_stalls(ETIMEDOUT);
  EXPECT_EQ(stalled.get(), 0);
  expect_bytes(*source, {0, 100});
}

TEST_F(CacheFileTest, AChangedObjectIsStaleForEverAndItsBlocksAreServed) {
  const auto source = open(4 * kMiB);
  network.script([](std::size_t number, ByteRange) { return Reply{.status = number ? 412 : 206}; });
  network.let_go();
  expect_bytes(*source, {0, kBlock});
  EXPECT_TRUE(source->is_current());
  Answer one(*source, {kMiB, 1}), other(*source, {3 * kMiB, 1});
  EXPECT_EQ(one.get(), ESTALE);
  EXPECT_EQ(other.get(), ESTALE);
  EXPECT_TRUE(source->has_changed());
  EXPECT_FALSE(source->is_current());
  const std::size_t asked = network.seen().size();
  EXPECT_EQ(Answer(*source, {2 * kMiB, 1}).get(), ESTALE);
  source->prefetch({0, 4 * kMiB});
  EXPECT_EQ(network.seen().size(), asked);
  expect_bytes(*source, {0, kBlock});
}

TEST_F(CacheFileTest, ARefusedAnswerFailsItsReadersAndSaysWhy) {
  const auto source = open(kMiB);
  network.script(
      [](std::size_t number, ByteRange) { return number < 2 ? Reply{.status = 200} : Reply{}; });
  network.let_go();
  EXPECT_EQ(Answer(*source, {0, 1}).get(), EIO);
  EXPECT_EQ(Answer(*source, {0, 1}).get(), EIO);
  expect_bytes(*source, {0, kMiB});  // the next one asks again
  ASSERT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failures()[0].error, EIO);
  EXPECT_EQ(source->failure_text(), "the server ignores ranges");
}

TEST_F(CacheFileTest, MoreBytesThanWereAskedForAreRefused) {
  const auto source = open(kMiB);
  network.always({.surplus = 1});
  network.let_go();
  EXPECT_EQ(Answer(*source, {0, kBlock}).get(), EIO);
}

TEST_F(CacheFileTest, CredentialsAreRenewedOnceThenAccessIsDenied) {
  const auto source = open(kMiB);
  network.script(
      [&](std::size_t, ByteRange) { return Reply{.status = remote->renewals == 1 ? 206 : 403}; });
  network.let_go();
  expect_bytes(*source, {0, kBlock});
  EXPECT_EQ(remote->renewals, 1);
  network.always({.status = 403});
  EXPECT_EQ(Answer(*source, {kBlock, 1}).get(), EACCES);
  EXPECT_EQ(remote->renewals, 2);
  EXPECT_EQ(to_text(network.seen()), "0+1 0+1 1+1 1+1 ");
  remote->can_renew = false;
  EXPECT_EQ(Answer(*source, {kBlock, 1}).get(), EACCES);
  EXPECT_EQ(network.seen().size(), 5U);
  remote->has_credentials = false;
  EXPECT_EQ(Answer(*source, {kBlock, 1}).get(), EIO);
}

TEST_F(CacheFileTest, SeveralRefusedAtOnceRenewOnce) {
  start({.connections = 4});
  const auto source = open(64 * kMiB);
  std::vector<Answer> answers;
  for (std::uint64_t i = 0; i < 4; ++i) answers.emplace_back(*source, ByteRange{i * 16 * kMiB, 1});
  network.wait_for_requests(4);
  network.script(
      [&](std::size_t number, ByteRange) { return Reply{.status = number < 4 ? 403 : 206}; });
  network.let_go();
  for (Answer& answer : answers) EXPECT_EQ(answer.get(), 0);
  EXPECT_EQ(remote->renewals, 1);
}

TEST_F(CacheFileTest, AWantHasADeadlineAndTheNextTriesAgain) {
  start({.timeout = 30ms});
  const auto source = open(kMiB);
  network.always({.cut_after = kBlock, .stall = true});
  network.let_go();
  source->prefetch({0, 2 * kBlock});
  network.wait_for_stalls(1);
  Answer one(*source, {0, 2 * kBlock});
  EXPECT_EQ(one.get(), EIO);
  ASSERT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failures()[0].begin, kBlock);
  EXPECT_TRUE(source->has({0, kBlock}));
  network.script({});
  network.end_stalls(EIO);
  while (Answer(*source, {0, 2 * kBlock}).get() != 0) {
  }
  expect_bytes(*source, {0, 2 * kBlock});
}

TEST_F(CacheFileTest, OfflineServesWhatIsThere) {
  start({.offline = true});
  const auto source = open(2 * kBlock, true, text_of({0, kBlock}));
  expect_bytes(*source, {0, kBlock});
  source->prefetch({0, 2 * kBlock});
  EXPECT_EQ(Answer(*source, {0, kBlock + 1}).get(), EIO);
  EXPECT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failure_text(), "offline, and these bytes were never fetched");
  EXPECT_TRUE(network.seen().empty());
}

TEST_F(CacheFileTest, TheEndOfASourceAnswersThoseWhoWait) {
  auto source = open(8 * kMiB);
  network.always({.cut_after = 5, .stall = true});
  Answer stalled(*source, {0, 1}), queued(*source, {4 * kMiB, 1});
  network.let_go();
  network.wait_for_stalls(2);
  source->prefetch({0, 8 * kMiB});
  source.reset();
  EXPECT_EQ(stalled.get(), ECANCELED);
  EXPECT_EQ(queued.get(), ECANCELED);
  network.end_stalls(EIO);
}

TEST_F(CacheFileTest, TheEndOfASourceWaitsForItsCallbacks) {
  auto source = open(kBlock);
  std::promise<void> entered, leave;
  std::atomic<bool> is_over = false;
  source->want({0, 1}, [&](int) {
    entered.set_value();
    leave.get_future().wait();
    is_over = true;
  });
  network.let_go();
  entered.get_future().wait();
  std::thread other([&] { leave.set_value(); });
  source.reset();
  EXPECT_TRUE(is_over);
  other.join();
}

TEST_F(CacheFileTest, MemoryIsBoundedAndKeepsWhatIsWaitedFor) {
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
  // More than the bound, for one callback.
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

// Nothing keeps a file of the cache from being truncated while the kernel copies from a mapping.
TEST_F(CacheFileTest, NothingIsSentFromAMapping) {
  network.let_go();
  const auto source = open(8 * kBlock);
  expect_bytes(*source, {0, 2 * kBlock});
  EXPECT_FALSE(source->can_pin({0, 2 * kBlock}));
  EXPECT_FALSE(source->try_pin());
}

TEST_F(CacheFileTest, ADamagedBlockIsFetchedAgain) {
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
  EXPECT_EQ(counters.cache_faults, 1U);
  EXPECT_EQ(to_text(network.seen()), "0+4 1+1 ");
}

void punch_hole(const fs::path& file, off_t offset, off_t length) {
  const UniqueFd fd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length), 0);
}

// read(2) may give zeros while a file is truncated: the size is looked at afterwards, and the room
// that it takes, as after `truncate -s 0; truncate -s N` and `fallocate --punch-hole`.
TEST_F(CacheFileTest, WhatAFileLostIsNeverZerosAndNoReaderGetsAnError) {
  network.let_go();
  const auto resize = [](std::uint64_t size) {
    return [=](const fs::path& data) { fs::resize_file(data, size); };
  };
  struct Row {
    const char* name;
    std::function<void(const fs::path& data)> harm;
    bool is_seen_at_once;  // by a read of block 1, here before
  };
  for (const auto& [name, harm, is_seen_at_once] : std::vector<Row>{
           {"cut behind the block", resize(2 * kBlock + 100), true},
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

// The loss is counted by a read of another block, which was never looked at.
TEST_F(CacheFileTest, ALossThatACheckFindsMakesAllBlocksDoubtful) {
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

// The file grows by more than it has lost, before it is read again.
TEST_F(CacheFileTest, ALossIsNotHiddenByWhatIsFetchedNext) {
  network.let_go();
  const auto source = open(64 * kBlock);
  expect_bytes(*source, {0, 100});
  punch_hole(entry_path() / "data", 0, kBlock / 2);
  ASSERT_EQ(Answer(*source, {32 * kBlock, 16 * kBlock}).get(), 0);
  expect_bytes(*source, {0, kBlock});
}

TEST_F(CacheFileTest, ATruncatedFileIsNotExtendedUnderThoseWhoReadIt) {
  network.let_go();
  const auto source = open(4 * kBlock);
  expect_bytes(*source, {0, 4 * kBlock});
  fs::resize_file(entry_path() / "data", kBlock);
  Cache other({.directory = directory.string(), .size = 0, .keep_free = 0});
  EXPECT_EQ(other.open(version_of(4 * kBlock)), nullptr);
  expect_bytes(*source, {0, 4 * kBlock});  // no zeros
}

// A power failure may keep the map and lose the data.
TEST_F(CacheFileTest, DataThatALossOfPowerTookIsNeverZeros) {
  network.let_go();
  expect_bytes(*open(4 * kBlock), {0, 4 * kBlock});
  punch_hole(entry_path() / "data", 4096, 2 * kBlock);
  const auto source = open(4 * kBlock);
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(counters.cache_faults, 3U);
}

TEST_F(CacheFileTest, AWindowOfTheCacheIsLookedAtWithoutReadingIt) {
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

TEST_F(CacheFileTest, ReadersInMemoryGetNoErrorForWhatWasDropped) {
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

TEST_F(CacheFileTest, WhatIsFetchedAheadPushesNothingOutOfMemory) {
  network.let_go();
  const auto source = open(64 * kMiB, false);
  expect_bytes(*source, {0, 12 * kMiB});
  for (std::uint64_t at = 16 * kMiB; at < 48 * kMiB; at += 4 * kMiB) {
    source->prefetch({at, 4 * kMiB});
    while (!source->has({at, 4 * kMiB})) std::this_thread::yield();
  }
  EXPECT_TRUE(source->has({0, 12 * kMiB}));
}

TEST_F(CacheFileTest, ASmallWantTakesItsTurnBesideAHugeOne) {
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

TEST_F(CacheFileTest, ALongCallbackHoldsUpNoDeadline) {
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

TEST_F(CacheFileTest, AClaimantThatStandsStillIsNotWaitedForForEver) {
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

TEST_F(CacheFileTest, AClaimantThatStandsStillIsWaitedForOnce) {
  start({.patience = 2s});
  const RemoteVersion version = version_of(5 * kBlock);
  const auto other = cache.open(version);
  for (const std::uint64_t block : {1, 2, 3, 4}) ASSERT_TRUE(other->claim(block));
  network.let_go();
  const auto source = open(version.size);
  expect_bytes(*source, {kBlock, kBlock});

  const auto begin = std::chrono::steady_clock::now();
  for (const std::uint64_t block : {2, 3, 4}) expect_bytes(*source, {block * kBlock, kBlock});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s) << "each waited for 2 s";
}

TEST_F(CacheFileTest, AClaimantThatStandsStillFailsNoReadWithAShortTimeout) {
  start({.timeout = 4s, .patience = 1h});
  const RemoteVersion version = version_of(kBlock);
  const auto other = cache.open(version);
  ASSERT_TRUE(other->claim(0));
  network.let_go();
  const auto source = open(version.size);
  EXPECT_EQ(Answer(*source, {0, kBlock}).get(), 0);
}

TEST_F(CacheFileTest, ABlockThatAnotherHasClaimedIsNotAskedFor) {
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
  // It comes from the other.
  const ByteRange range = other->range_of(1);
  ASSERT_EQ(other->write(bytes_of(range), range.offset), 0);
  CacheEntry::Sum sum(*other, 1);
  sum.add(bytes_of(range));
  other->publish(1, sum.value());
  EXPECT_EQ(all.get(), 0);
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(network.seen().size(), 2U);
}

TEST_F(CacheFileTest, WhileARequestWaitsToBeSentAgainAnotherMayFetchItsBlocks) {
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

TEST_F(CacheFileTest, AClaimThatIsGoneIsTakenOver) {
  const RemoteVersion version = version_of(4 * kBlock);
  auto other = cache.open(version);
  for (const std::uint64_t block : {0, 1, 2}) ASSERT_TRUE(other->claim(block));
  network.let_go();
  const auto source = open(version.size);
  Answer all(*source, {0, 4 * kBlock});
  network.wait_for_requests(1);
  EXPECT_EQ(to_text(network.seen()), "3+1 ");
  other.reset();
  EXPECT_EQ(all.get(), 0);
  EXPECT_EQ(to_text(network.seen()), "3+1 0+3 ");
}

// Reads random ranges as the mount does: wants again what memory dropped, or what failed.
void read_randomly(const Source& source, unsigned seed, int reads, std::uint64_t longest) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < reads; ++i) {
    const std::uint64_t offset = random() % source.size();
    const ByteRange range{offset, std::min(source.size() - offset, 1 + random() % longest)};
    if (random() % 4 == 0) source.prefetch({range.offset, 4 * range.length});
    std::vector<std::byte> bytes(range.length);
    // In the callback: until it returns, memory keeps what was wanted.
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

TEST_P(RandomReads, GetTheTrueBytesWhateverTheNetworkDoes) {
  network.script([random = std::mt19937_64(7)](std::size_t, ByteRange range) mutable {
    switch (random() % 16) {
      case 0:
        return Reply{.status = 0, .error = EIO};
      case 1:
      case 2:
        return Reply{.cut_after = random() % range.length, .error = EIO};
      case 3:
        return Reply{.cut_after = random() % range.length};
      case 4:
        return Reply{.status = 503};
      case 5:
        return Reply{.status = 403};
      case 6:
        return Reply{.status = 200};
      default:
        return Reply{};
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

TEST_F(CacheFileTest, AServerOfHttpFillsIt) {
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

TEST_F(CacheFileTest, AFullDiskCostsSpeedAndNoReaderAnError) {
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

TEST_F(CacheFileTest, ACacheSmallerThanTheObjectIsBoundedAndReadsGoOn) {
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

// Processes of their own: forked before this one has threads.
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

TEST_F(CacheFileProcesses, FetchABlockOnce) {
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
    if (seed < 3) continue;  // the next child goes on
    std::vector<std::byte> bytes(version.size);
    EXPECT_EQ(source.read(bytes, 0), 0);
    EXPECT_TRUE(bytes == bytes_of({0, version.size}));
  }
}

}  // namespace
}  // namespace stfs::cache_file_test
