#include "tools/gpu/reserve.h"

#include <gtest/gtest.h>

#include <new>

namespace stfs::gpu::test {
namespace {

// What operator new does, so often, when there is no memory: until there is no more help.
int help(std::new_handler handler) {
  for (int times = 0;; ++times) {
    try {
      handler();
    } catch (const std::bad_alloc&) {
      return times;
    }
  }
}

TEST(Reserve, HelpsUntilItIsUsedUpAndAgainWhenItIsRestored) {
  Reserve reserve;
  ASSERT_NE(std::get_new_handler(), nullptr);

  const int times = help(std::get_new_handler());
  EXPECT_GT(times, 100);
  EXPECT_EQ(help(std::get_new_handler()), 0);
  EXPECT_TRUE(reserve.restore());
  EXPECT_EQ(help(std::get_new_handler()), times);
}

TEST(Reserve, HelpsNobodyWhenItIsGone) {
  { const Reserve reserve; }
  EXPECT_EQ(std::get_new_handler(), nullptr);
}

}  // namespace
}  // namespace stfs::gpu::test
