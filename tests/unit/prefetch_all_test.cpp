// Tests that prefetch=all fetches all bytes in order and verifies them.
#include "fs/mount/prefetch_all.h"

#include "tests/support/files.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class PrefetchAllTest : public ::testing::Test {
 protected:
  PrefetchAllTest() {
    write_file(dir_ / "f", std::string(20 << 20, 'x'));
    source_.emplace((dir_ / "f").string());
    source_->take_bytes_away();
  }

  PrefetchAll::Log log() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
      logged_.notify_all();
    };
  }
  std::string line() {
    std::unique_lock lock(mutex_);
    logged_.wait(lock, [this] { return !lines_.empty(); });
    return lines_.front();
  }

  TempDir dir_;
  std::optional<LateSource> source_;
  std::mutex mutex_;
  std::condition_variable logged_;
  std::vector<std::string> lines_;
};

TEST_F(PrefetchAllTest, FetchesAllBytesAndLogsIt) {
  source_->deliver_at_once();

  const PrefetchAll prefetch({&*source_}, log());

  EXPECT_EQ(line(), "prefetch=all: all 20971520 bytes are cached");
  EXPECT_TRUE(source_->has({0, 20 << 20}));
  EXPECT_LE(source_->longest_want(), 8U << 20);
}

TEST_F(PrefetchAllTest, LogsReasonForStopping) {
  const PrefetchAll prefetch({&*source_}, log());
  while (source_->wanted().empty()) std::this_thread::yield();
  source_->deliver(0);
  while (source_->wanted().empty()) std::this_thread::yield();
  source_->deliver(EACCES);

  EXPECT_EQ(line(),
            "prefetch=all: " + (dir_ / "f").string() +
                ": stopped after 8388608 bytes: Permission denied: the rest is fetched when "
                "it is read");
}

TEST_F(PrefetchAllTest, DestructorDoesNotWaitForBytes) {
  {
    const PrefetchAll prefetch({&*source_}, log());
    while (source_->wanted().empty()) std::this_thread::yield();
  }

  EXPECT_TRUE(lines_.empty());
  source_->deliver(0);
}

TEST_F(PrefetchAllTest, RejectsBytesWithWrongDigest) {
  source_->deliver_at_once();
  source_->promise_sha256(std::string(64, '0'));

  const PrefetchAll prefetch({&*source_}, log());

  EXPECT_NE(line().find("not 0000"), std::string::npos) << line();
  EXPECT_EQ(source_->verify(), ESTALE);
}

TEST_F(PrefetchAllTest, StopsIfCacheKeepsNothing) {
  source_->deliver_at_once();
  source_->keep_at_most(1);

  const PrefetchAll prefetch({&*source_}, log());

  EXPECT_NE(line().find("no cache holds them"), std::string::npos) << line();
}

}  // namespace
}  // namespace stfs::test
