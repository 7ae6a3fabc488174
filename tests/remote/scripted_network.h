// A network in the test's process with scripted responses.
#pragma once

#include "core/remote/cache/cache.h"
#include "core/remote/http/http.h"
#include "tests/support/sizes.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::cache_file_test {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
constexpr std::uint64_t kBlock = CacheEntry::kBlock;
using test::kMiB;

// Returns byte `at` of every object. No byte is 0, and no two blocks are equal.
inline std::byte byte_at(std::uint64_t at) {
  std::uint64_t x = at / 8 * 0x9E3779B97F4A7C15 + 1;
  x ^= x >> 31;
  return static_cast<std::byte>((x >> (at % 8 * 8)) | 1);
}

inline std::vector<std::byte> bytes_of(ByteRange range) {
  std::vector<std::byte> bytes(range.length);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(range.offset + i);
  return bytes;
}

inline std::string text_of(ByteRange range) {
  const std::vector<std::byte> bytes = bytes_of(range);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The response to a request.
struct Reply {
  int status = 206;
  std::uint64_t cut_after = std::numeric_limits<std::uint64_t>::max();  // bytes of the body
  std::uint64_t surplus = 0;                                            // bytes beyond the range
  int error = 0;       // passed to the callback end
  bool stall = false;  // does not end until end_stalls()
  std::string retry_after = {};
};

// Answers one request at a time on its own thread, with the same callbacks as Http. While the
// network is held, it only queues requests.
class Network : public Http {
 public:
  explicit Network(bool is_held = false) : Http(Options{}), is_paused_(is_held) {
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

  // Ends abandoned requests that stall or are held.
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

  // Sets the responses from now on. `number` counts the requests from 0.
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
    is_paused_ = requests == 0;
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
  // Waits until `count` transfers have stalled since the first request. Also counts transfers that
  // have ended, because a deadline may end a transfer immediately.
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
      changed_.wait(
          lock, [&] { return is_ending_ || (!is_paused_ && allowed_ > 0 && !pending_.empty()); });
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
      // The request may have been abandoned while it was answered. look() has not seen it then.
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

  // Returns true if the transfer stalls.
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
    constexpr std::uint64_t kPiece = 100'003;  // a prime, so that pieces cross block boundaries
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
  bool is_paused_, is_ending_ = false;
  std::size_t allowed_ = std::numeric_limits<std::size_t>::max();
  std::size_t answered_ = 0, stalls_ = 0;
  std::function<Reply(std::size_t, ByteRange)> script_;
  std::vector<ByteRange> seen_;
  std::vector<std::chrono::milliseconds> limits_;
  std::deque<Pending> pending_, stalled_;
  std::thread thread_;
};

}  // namespace stfs::cache_file_test
