#include "fs/mount/repeated_reads.h"

#include <gtest/gtest.h>

namespace stfs {
namespace {

using namespace std::chrono_literals;

class SecondTriesTest : public testing::Test {
 protected:
  static constexpr RepeatedReads::Read kAhead{7, 4096, 131072}, kPage{7, 4096, 4096};

  RepeatedReads tries_;
  RepeatedReads::Clock::time_point began_ = RepeatedReads::Clock::now(), now_ = began_ + 5s;
};

TEST_F(SecondTriesTest, FirstFailureAfterLongWaitIsReportedTwice) {
  tries_.failed(kAhead, began_, now_);
  EXPECT_TRUE(tries_.take(kPage, now_ + 1ms));
  EXPECT_FALSE(tries_.take(kPage, now_ + 2ms));  // the next read of the program
}

TEST_F(SecondTriesTest, LaterFailuresAreReportedOnceUntilReadSucceeds) {
  tries_.failed(kAhead, began_, now_);
  EXPECT_TRUE(tries_.take(kPage, now_));
  tries_.failed(kPage, now_, now_ + 5s);  // the kernel knows the page and requests it only once
  EXPECT_FALSE(tries_.take(kPage, now_ + 5s));
  tries_.succeeded(kPage);
  tries_.failed(kAhead, began_, now_);
  EXPECT_TRUE(tries_.take(kPage, now_));
}

TEST_F(SecondTriesTest, OtherRangeOtherFileOrLateReadIsNotSecondTry) {
  tries_.failed(kAhead, began_, now_);
  EXPECT_FALSE(tries_.take({7, 0, 4096}, now_));
  EXPECT_FALSE(tries_.take({7, 4096 + 131072, 4096}, now_));
  EXPECT_FALSE(tries_.take({8, 4096, 4096}, now_));
  EXPECT_FALSE(tries_.take(kPage, now_ + 1001ms));
}

TEST_F(SecondTriesTest, QuickFailureIsReportedOnce) {
  tries_.failed(kAhead, now_ - 499ms, now_);
  EXPECT_FALSE(tries_.take(kPage, now_));
}

TEST_F(SecondTriesTest, DropsOldestFailureAboveLimit) {
  for (std::uint64_t inode = 0; inode <= RepeatedReads::kMost; ++inode) {
    tries_.failed({inode, 0, 1}, began_, now_);
  }
  EXPECT_FALSE(tries_.take({0, 0, 1}, now_));
  EXPECT_TRUE(tries_.take({1, 0, 1}, now_));
}

}  // namespace
}  // namespace stfs
