// A source that a network fills, with a network of the test's own: each answer is scripted.
#include "core/source/cache_file.h"

#include "core/source/fetcher.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
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

  void start(HttpRequest request, HttpCallbacks callbacks, std::chrono::milliseconds) override {
    const std::lock_guard lock(mutex_);
    seen_.push_back(*request.range);
    pending_.push_back({std::move(request), std::move(callbacks)});
    changed_.notify_all();
  }

  // From now on; the argument is the number of the request, from 0.
  void script(std::function<Reply(std::size_t number, ByteRange range)> script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void let_go(std::size_t requests = std::numeric_limits<std::size_t>::max()) {
    const std::lock_guard lock(mutex_);
    is_held_ = requests == 0;
    allowed_ = requests;
    changed_.notify_all();
  }
  // Ends the transfers that stall, and begins no more stalls.
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
  void wait_for_stalls(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stalled_.size() >= count; });
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
      if (has_stalled) stalled_.push_back(std::move(pending));
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
    if (!callbacks.head({.status = reply.status, .url = pending.request.url, .headers = {}})) {
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
  std::size_t answered_ = 0;
  std::function<Reply(std::size_t, ByteRange)> script_;
  std::vector<ByteRange> seen_;
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
    with.log = [this](const std::string& line) {
      const std::lock_guard lock(log_mutex);
      lines.push_back(line);
    };
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
  std::vector<std::string> log() {
    const std::lock_guard lock(log_mutex);
    return lines;
  }
  fs::path entry_path() const {
    for (const auto& entry : fs::directory_iterator(directory / "v1/entries")) return entry.path();
    return {};
  }

  test::TempDir temporary;
  fs::path directory = temporary / "cache";
  Counters counters;
  std::mutex log_mutex;
  std::vector<std::string> lines;
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
    EXPECT_EQ(source->version().token, "web-1");
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
  EXPECT_TRUE(source->is_complete());
  expect_bytes(*source, {0, source->size()});
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


TEST_F(CacheFileTest, ARangeOutsideTheObjectIsRefused) {
  const auto source = open(2 * kBlock);
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  for (const ByteRange range : {ByteRange{2 * kBlock, 1}, {0, kMost}, {kMost, 2}, {1, 2 * kBlock}}) {
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
  Answer second(*source, {10 * kMiB, kMiB});      // behind it
  Answer third(*source, {48 * kMiB - 1, 2});      // its first half is queued ahead
  Answer fourth(*source, {31 * kMiB, kMiB});      // what is ahead follows
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
  EXPECT_EQ(to_text(network.seen()),
            "0+32 32+32 64+32 96+32 128+32 160+32 192+32 224+32 ");
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
  network.script([](std::size_t, ByteRange) {
    return Reply{.cut_after = 3 * kBlock + 5, .stall = true};
  });
  Answer all(*source, {0, 8 * kMiB});
  Answer three(*source, {0, 3 * kBlock});
  Answer four(*source, {3 * kBlock, 1});
  network.let_go();
  EXPECT_EQ(three.get(), 0);
  EXPECT_FALSE(four.is_there());
  EXPECT_FALSE(all.is_there());
  EXPECT_EQ(to_text(network.seen()), "0+32 ");
  network.script({});
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

TEST_F(CacheFileTest, AStalledTransferHoldsUpNobodyElse) {
  const auto source = open(8 * kMiB);
  network.script([](std::size_t number, ByteRange) {
    return number == 0 ? Reply{.cut_after = 5, .stall = true} : Reply{};
  });
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

TEST_F(CacheFileTest, ARefusedAnswerFailsItsReadersAndIsLoggedOnce) {
  const auto source = open(kMiB);
  network.script([](std::size_t number, ByteRange) {
    return number < 2 ? Reply{.status = 200} : Reply{};
  });
  network.let_go();
  EXPECT_EQ(Answer(*source, {0, 1}).get(), EIO);
  EXPECT_EQ(Answer(*source, {0, 1}).get(), EIO);
  expect_bytes(*source, {0, kMiB});  // the next one asks again
  ASSERT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failures()[0].error, EIO);
  EXPECT_EQ(log(), std::vector<std::string>{"https://host/object: the server ignores ranges"});
}

TEST_F(CacheFileTest, MoreBytesThanWereAskedForAreRefused) {
  const auto source = open(kMiB);
  network.script([](std::size_t, ByteRange) { return Reply{.surplus = 1}; });
  network.let_go();
  EXPECT_EQ(Answer(*source, {0, kBlock}).get(), EIO);
}

TEST_F(CacheFileTest, CredentialsAreRenewedOnceThenAccessIsDenied) {
  const auto source = open(kMiB);
  network.script([&](std::size_t, ByteRange) {
    return Reply{.status = remote->renewals == 1 ? 206 : 403};
  });
  network.let_go();
  expect_bytes(*source, {0, kBlock});
  EXPECT_EQ(remote->renewals, 1);
  network.script([](std::size_t, ByteRange) { return Reply{.status = 403}; });
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
  network.script([&](std::size_t number, ByteRange) { return Reply{.status = number < 4 ? 403 : 206}; });
  network.let_go();
  for (Answer& answer : answers) EXPECT_EQ(answer.get(), 0);
  EXPECT_EQ(remote->renewals, 1);
}

TEST_F(CacheFileTest, AWantHasADeadlineAndTheNextTriesAgain) {
  start({.timeout = 30ms});
  const auto source = open(kMiB);
  network.script([](std::size_t, ByteRange) { return Reply{.cut_after = kBlock, .stall = true}; });
  network.let_go();
  Answer one(*source, {0, 2 * kBlock});
  EXPECT_EQ(one.get(), EIO);
  ASSERT_EQ(source->failures().size(), 1U);
  EXPECT_EQ(source->failures()[0].begin, kBlock);
  network.wait_for_stalls(1);
  EXPECT_TRUE(source->has({0, kBlock}));  // it came, into the cache
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
  EXPECT_EQ(log().size(), 1U);
  EXPECT_TRUE(network.seen().empty());
}

TEST_F(CacheFileTest, TheEndOfASourceAnswersThoseWhoWait) {
  auto source = open(8 * kMiB);
  network.script([](std::size_t, ByteRange) { return Reply{.cut_after = 5, .stall = true}; });
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
  for (std::uint64_t at = 0; at < 64 * kMiB; at += kBlock) there += source->has({at, 1}) ? kBlock : 0;
  EXPECT_LE(there, Fetcher::kMemory + 32 * kMiB);
  EXPECT_FALSE(source->try_pin());
  EXPECT_FALSE(source->can_pin({0, 1}));
  std::vector<std::byte> byte(1);
  for (std::uint64_t at = 0; at < 64 * kMiB; at += kBlock) {
    if (source->has({at, 1})) continue;
    EXPECT_EQ(source->read_unverified(byte, at), EIO);
  }
}

TEST_F(CacheFileTest, BytesThatAreHereArePinned) {
  network.let_go();
  const auto source = open(8 * kBlock);
  expect_bytes(*source, {0, 2 * kBlock});
  EXPECT_TRUE(source->can_pin({0, 2 * kBlock}));
  EXPECT_FALSE(source->can_pin({0, 2 * kBlock + 1}));
  EXPECT_FALSE(source->can_pin({0, 0}));
  EXPECT_TRUE(source->try_pin());
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
  EXPECT_FALSE(source->has({0, 4 * kBlock}));
  expect_bytes(*source, {0, 4 * kBlock});
  EXPECT_EQ(counters.cache_faults, 1U);
  EXPECT_EQ(to_text(network.seen()), "0+4 1+1 ");
}

TEST_F(CacheFileTest, ATruncatedFileIsAnErrorOnceAndThenFetchedAgain) {
  network.let_go();
  const auto source = open(4 * kBlock);
  expect_bytes(*source, {0, 4 * kBlock});
  fs::resize_file(entry_path() / "data", kBlock);
  std::vector<std::byte> bytes(2 * kBlock);
  EXPECT_EQ(source->read_unverified(bytes, kBlock), EIO);
  expect_bytes(*source, {0, 4 * kBlock});
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

}  // namespace
}  // namespace stfs::cache_file_test
