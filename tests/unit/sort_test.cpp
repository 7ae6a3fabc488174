#include "core/base/sort.h"

#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

std::vector<std::uint32_t> order_by_model(const std::vector<std::string>& texts) {
  std::vector<std::uint32_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order,
                           [&](std::uint32_t a, std::uint32_t b) { return texts[a] < texts[b]; });
  return order;
}

std::vector<std::uint32_t> order_of(const std::vector<std::string>& texts) {
  return sorted_order(texts.size(), [&](std::uint32_t i) { return std::string_view(texts[i]); })
      .order;
}

// Returns a text of few different bytes with a length near a multiple of eight.
std::string random_text(RandomBytes& random, std::string_view alphabet) {
  const std::uint64_t eights = random.next() % 5;
  const std::uint64_t length = eights * 8 + random.next() % 3;
  std::string text(length > 0 ? length - 1 : 0, '\0');
  // Long runs of one byte make long common prefixes.
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] =
        i > 0 && random.next() % 8 != 0 ? text[i - 1] : alphabet[random.next() % alphabet.size()];
  }
  return text;
}

TEST(SortedOrder, MatchesStableSort) {
  RandomBytes random(1);
  const std::vector<std::string> alphabets{"\0"s, "\0a"s, "ab", "\0\x01\x7f\x80\xff"s};
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> texts(random.next() % (round % 50 == 0 ? 2000 : 60));
    const std::string& alphabet = alphabets[random.next() % alphabets.size()];
    const std::string beginning(random.next() % 20, 'p');
    for (std::string& text : texts) text = beginning + random_text(random, alphabet);

    ASSERT_EQ(order_of(texts), order_by_model(texts)) << "round " << round;
  }
}

TEST(SortedOrder, ReportsWhetherAnyTextsAreEqual) {
  RandomBytes random(2);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> texts(random.next() % 60);
    const std::string beginning(random.next() % 20, 'p');
    for (std::string& text : texts) text = beginning + random_text(random, "\0ab"s);
    std::vector<std::string> sorted = texts;
    std::ranges::sort(sorted);
    const bool any_equal = std::ranges::adjacent_find(sorted) != sorted.end();

    const SortedOrder order =
        sorted_order(texts.size(), [&](std::uint32_t i) { return std::string_view(texts[i]); });

    ASSERT_EQ(order.any_equal, any_equal) << "round " << round;
  }
}

TEST(SortedOrder, MatchesStableSortWithSeveralThreads) {  // enough texts for several threads
  std::vector<std::string> texts;
  for (int i = 0; i < 200'000; ++i) {
    texts.push_back("model.layers." + std::to_string(i % 61) + ".experts." +
                    std::to_string(i * 7 % 190'000));
  }

  EXPECT_EQ(order_of(texts), order_by_model(texts));
}

TEST(SortedOrder, SortsSortedAndReversedInput) {
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i)
    texts.push_back("model.layers." + std::to_string(i / 7) + ".weight");
  std::ranges::sort(texts);
  EXPECT_EQ(order_of(texts), order_by_model(texts));
  std::ranges::reverse(texts);
  EXPECT_EQ(order_of(texts), order_by_model(texts));
}

TEST(SortedOrder, KeepsEqualTextsInInputOrder) {
  const std::vector<std::string> texts(1000, std::string(64, 'x'));
  EXPECT_EQ(order_of(texts), order_by_model(texts));
}

TEST(SortedOrder, DistinguishesEndFromZeroByte) {
  std::vector<std::string> texts;
  for (std::size_t i = 40; i > 0; --i)
    texts.push_back(std::string(8, 'x') + std::string(i - 1, '\0'));
  EXPECT_EQ(order_of(texts), order_by_model(texts));
}

TEST(SortedOrder, SortsTextsWithLongCommonPrefix) {
  const std::string beginning(1'000'000, 'x');
  std::vector<std::string> texts;
  for (int i = 40; i > 0; --i) texts.push_back(beginning + std::to_string(i));
  EXPECT_EQ(order_of(texts), order_by_model(texts));
}

TEST(SortedOrder, IsEmptyForNoTexts) { EXPECT_TRUE(order_of({}).empty()); }

}  // namespace
}  // namespace stfs::test
