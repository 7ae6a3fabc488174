#include "fs/mount/looked_up_names.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <latch>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

std::optional<std::uint64_t> no_bytes() { return 0; }

TEST(LookedUpNames, GiveSameNameSameNumber) {
  LookedUpNames names;

  const std::uint64_t first = *names.look_up(3, 7, "0:1", no_bytes);
  const std::uint64_t again = *names.look_up(3, 7, "0:1", no_bytes);

  EXPECT_EQ(first, again);
  EXPECT_EQ(names.size(), 1U);
  const LookedUpNames::Name* name = names.find(first);
  ASSERT_NE(name, nullptr);
  EXPECT_EQ(name->view, 3);
  EXPECT_EQ(name->tensor, 7U);
  EXPECT_EQ(name->expression, "0:1");
  EXPECT_EQ(name->size, 0U);
  EXPECT_EQ(name->number, first);
  EXPECT_EQ(name->lookups, 2U);
}

TEST(LookedUpNames, DifferByViewTensorAndExpression) {
  LookedUpNames names;
  std::set<std::uint64_t> numbers;

  for (const std::uint8_t view : {std::uint8_t{1}, std::uint8_t{2}}) {
    for (const std::uint32_t tensor : {0U, 1U, 256U, 0xFFFFFFFFU}) {
      for (const char* expression : {"", "0", "1", "0,0"}) {
        numbers.insert(*names.look_up(view, tensor, expression, no_bytes));
      }
    }
  }

  EXPECT_EQ(numbers.size(), 32U);
  EXPECT_EQ(names.size(), 32U);
}

TEST(LookedUpNames, DisappearAfterAsManyForgetsAsLookups) {
  LookedUpNames names;
  const std::uint64_t number = *names.look_up(1, 0, "a", no_bytes);
  for (int i = 0; i < 4; ++i) names.look_up(1, 0, "a", no_bytes);

  names.forget(number, 3);
  EXPECT_NE(names.find(number), nullptr);
  names.forget(number, 1);
  EXPECT_NE(names.find(number), nullptr);
  names.forget(number, 1);

  EXPECT_EQ(names.find(number), nullptr);
  EXPECT_EQ(names.size(), 0U);
}

TEST(LookedUpNames, GetNewNumberAfterForget) {
  LookedUpNames names;
  const std::uint64_t first = *names.look_up(1, 0, "a", no_bytes);
  names.forget(first, 1);

  const std::uint64_t second = *names.look_up(1, 0, "a", no_bytes);

  EXPECT_NE(first, second) << "the kernel may still have pages of the first number";
  EXPECT_EQ(names.find(first), nullptr);
}

TEST(LookedUpNames, TolerateUnknownNumbersAndExcessForgets) {
  LookedUpNames names;
  const std::uint64_t number = *names.look_up(1, 0, "a", no_bytes);

  names.forget(number + 1, 1);
  names.forget(number, 0);
  EXPECT_EQ(names.size(), 1U);
  names.forget(number, ~std::uint64_t{0});

  EXPECT_EQ(names.size(), 0U);
  EXPECT_EQ(names.find(number), nullptr);
}

TEST(LookedUpNames, RequestSizeOnlyForNewName) {
  LookedUpNames names;
  int asked = 0;
  const auto size = [&] { return static_cast<std::uint64_t>(++asked + 3); };

  const std::uint64_t number = *names.look_up(1, 0, "a", size);
  names.look_up(1, 0, "a", size);

  EXPECT_EQ(asked, 1);
  EXPECT_EQ(names.find(number)->size, 4U);
}

TEST(LookedUpNames, DoNotKeepMissingFile) {
  LookedUpNames names;

  EXPECT_FALSE(names.look_up(1, 0, "a", [] { return std::nullopt; }));

  EXPECT_EQ(names.size(), 0U);
}

TEST(LookedUpNames, MillionForgetsLeaveNoNames) {
  LookedUpNames names;
  for (int i = 0; i < 1'000'000; ++i) {
    names.forget(*names.look_up(1, 0, std::to_string(i), no_bytes), 1);
  }
  EXPECT_EQ(names.size(), 0U);

  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 100'000; ++i) {
    numbers.push_back(*names.look_up(1, 0, std::to_string(i), no_bytes));
  }
  EXPECT_EQ(names.size(), 100'000U);
  for (const std::uint64_t number : numbers) names.forget(number, 1);

  EXPECT_EQ(names.size(), 0U);
}

TEST(LookedUpNames, CountConcurrentLookups) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  LookedUpNames names;
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        const std::string shared = std::to_string(i % 10);
        const std::uint64_t number = *names.look_up(1, 0, shared, [] { return 1; });
        const LookedUpNames::Name* name = names.find(number);
        EXPECT_NE(name, nullptr);
        if (name != nullptr) {
          EXPECT_EQ(name->expression, shared);
          EXPECT_EQ(name->size, 1U);
        }
        const std::uint64_t own =
            *names.look_up(2, static_cast<std::uint32_t>(t), shared, no_bytes);
        names.forget(own, 1);
        names.forget(number, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(names.size(), 0U);
}

#ifndef STFS_SANITIZED  // sanitizers have their own allocator
TEST(LookedUpNames, ReleaseMemoryAfterManyForgets) {
  const auto in_use = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  LookedUpNames names;
  const std::size_t before = in_use();

  std::vector<std::uint64_t> numbers(100'000);
  const std::size_t with_numbers = in_use();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = *names.look_up(1, 0, std::to_string(i), no_bytes);
  }
  EXPECT_GT(in_use(), with_numbers + numbers.size() * 64);
  for (const std::uint64_t number : numbers) names.forget(number, 1);
  numbers = std::vector<std::uint64_t>();

  EXPECT_LT(in_use(), before + 64 * 1024);
}
#endif

}  // namespace
}  // namespace stfs::test
