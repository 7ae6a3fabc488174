#include "fs/mount/recipes.h"

#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

// Makes recipes of `number` bytes and counts them.
class Counted {
 public:
  Recipes::Shared get(std::uint64_t number, std::size_t tensors = 1) {
    return recipes_.get(number, [&] {
      ++calls;
      Content content;
      content.literal(std::string(number, 'x'));
      return Recipes::New{std::move(content), tensors};
    });
  }
  void drop(std::uint64_t number) { recipes_.drop(number); }

  int calls = 0;

 private:
  Recipes recipes_;
};

TEST(Recipes, AreMadeOnceWhileKept) {
  Counted recipes;

  const Recipes::Shared first = recipes.get(3);
  const Recipes::Shared again = recipes.get(3);

  EXPECT_EQ(first, again);
  EXPECT_EQ(first->size(), 3U);
  EXPECT_EQ(recipes.calls, 1);
}

TEST(Recipes, EvictLeastRecentlyUsed) {
  Counted recipes;
  for (std::uint64_t number = 1; number <= Recipes::kMaxRecipes; ++number) recipes.get(number);
  recipes.get(1);
  recipes.calls = 0;

  recipes.get(Recipes::kMaxRecipes + 1);

  EXPECT_EQ(recipes.calls, 1);
  recipes.get(1);
  EXPECT_EQ(recipes.calls, 1) << "the recipe was evicted";
  recipes.get(2);
  EXPECT_EQ(recipes.calls, 2) << "the recipe was not evicted";
}

TEST(Recipes, KeepOnlyOneWithManyTensors) {
  Counted recipes;
  recipes.get(1, Recipes::kMaxTensors);
  recipes.get(2, Recipes::kMaxTensors);
  recipes.calls = 0;

  recipes.get(2, Recipes::kMaxTensors);
  EXPECT_EQ(recipes.calls, 0);
  recipes.get(1, Recipes::kMaxTensors);

  EXPECT_EQ(recipes.calls, 1);
}

TEST(Recipes, DropFreesRoomForOthers) {
  Counted recipes;
  recipes.get(1, Recipes::kMaxTensors);
  recipes.drop(1);
  recipes.get(2);
  recipes.get(3);
  recipes.calls = 0;

  recipes.get(2);

  EXPECT_EQ(recipes.calls, 0);
}

TEST(Recipes, StayValidForReadersAfterEviction) {
  Counted recipes;
  const Recipes::Shared read = recipes.get(5);
  for (std::uint64_t number = 100; number < 100 + Recipes::kMaxRecipes; ++number)
    recipes.get(number);
  recipes.drop(5);

  std::array<std::byte, 5> bytes{};
  EXPECT_EQ(read->copy(0, bytes), 0);

  EXPECT_EQ(bytes[4], std::byte{'x'});
}

TEST(Recipes, AreMadeAgainAfterDrop) {
  Counted recipes;
  recipes.get(1);
  recipes.drop(1);
  recipes.drop(1);

  recipes.get(1);

  EXPECT_EQ(recipes.calls, 2);
}

TEST(Recipes, AreNullIfTheyCannotBeMade) {
  Recipes recipes;

  EXPECT_EQ(recipes.get(1, [] { return Recipes::New{std::nullopt, 0}; }), nullptr);
}

TEST(Recipes, AreMadeOnceForConcurrentReaders) {
  constexpr int kThreads = 8;
  Counted recipes;
  std::latch start(kThreads);
  std::vector<std::thread> readers;

  for (int i = 0; i < kThreads; ++i) {
    readers.emplace_back([&] {
      start.arrive_and_wait();
      EXPECT_EQ(recipes.get(7)->size(), 7U);
    });
  }
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(recipes.calls, 1);
}

}  // namespace
}  // namespace stfs::test
