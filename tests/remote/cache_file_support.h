// A fixture with a CacheFile that is filled by a scripted network, and with its own cache.
#pragma once

#include "core/remote/cache/cache_file.h"
#include "core/remote/cache/fetcher.h"
#include "tests/remote/remote_support.h"
#include "tests/remote/scripted_network.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::cache_file_test {

// Derives its verdict only from the status.
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
  ResponseVerdict judge(const HttpHead& head, ByteRange) const override {
    switch (head.status) {
      case 206: return {ResponseVerdict::Kind::kAccept};
      case 503: return {ResponseVerdict::Kind::kRetry, "503 Slow Down"};
      case 403: return {ResponseVerdict::Kind::kRenew, "403 Forbidden"};
      case 412: return {ResponseVerdict::Kind::kChanged, "the object has changed"};
      default: return {ResponseVerdict::Kind::kRefused, "the server ignores ranges"};
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

// Returns true if one of many consecutive tries fetches the range.
inline bool arrives(const Source& source, ByteRange range) {
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
  // Makes the network deliver only the first `bytes` bytes of each `every` bytes of the object. A
  // request for the remaining bytes gets nothing, however often a slow machine repeats it.
  void stall_after(std::uint64_t bytes, std::uint64_t every) {
    network.script([=](std::size_t, ByteRange range) {
      const std::uint64_t at = range.offset % every;
      return Reply{.cut_after = at < bytes ? bytes - at : 0, .stall = true};
    });
  }
  // Wants a range, which fails each time, until a transfer stalls. On a busy machine a short
  // deadline may expire before the first request or its bytes.
  void miss(const Source& source, ByteRange range) {
    const std::size_t before = network.stalls();
    do {
      ASSERT_EQ(Answer(source, range).get(), EIO);
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

inline std::string to_text(const std::vector<ByteRange>& ranges) {  // in blocks
  std::string text;
  for (const auto& [offset, length] : ranges) {
    text += std::to_string(offset / kBlock) + "+" + std::to_string((length + kBlock - 1) / kBlock) +
            " ";
  }
  return text;
}

}  // namespace stfs::cache_file_test
