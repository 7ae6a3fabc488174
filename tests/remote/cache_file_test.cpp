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

}  // namespace
}  // namespace stfs::cache_file_test
