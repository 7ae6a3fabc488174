// Elements in another order, compared with a loop over their indices.
#include "core/recipe/strided_producer.h"
#include "core/source/local_file.h"
#include "tests/support/files.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Numbers = std::vector<std::uint64_t>;

std::string expected(const std::string& below, std::uint64_t width, std::uint64_t begin,
                     const Numbers& shape, const Numbers& strides) {
  std::string out;
  Numbers index(shape.size());
  while (true) {
    std::uint64_t at = begin;
    for (std::size_t i = 0; i < shape.size(); ++i) at += index[i] * strides[i];
    out += below.substr(at, width);
    std::size_t i = shape.size();
    while (i > 0 && ++index[i - 1] == shape[i - 1]) index[--i] = 0;
    if (i == 0) return out;
  }
}

TEST(StridedElements, EqualElementsFromIndexLoop) {
  std::string below(6'000'200, '\0');
  std::uint32_t state = 5;
  for (char& c : below) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>(state >> 24);
  }
  const TempDir dir;
  write_file(dir / "s", below);
  const LocalFile source((dir / "s").string());
  const struct {
    std::uint64_t width, begin;
    Numbers shape, strides;
  } cases[] = {
      {4, 0, {1000, 1500}, {4, 4000}},             // transposed
      {2, 2, {7, 1, 300}, {2, 99, 14}},            // with a dimension of one
      {1, 0, {3, 700, 501}, {700 * 501, 1, 700}},  // a batch of transposed matrices
      {2, 0, {2, 3, 4, 5}, {2, 40, 120, 4}},       // permuted
      {4, 16, {500, 40}, {12000, 4}},              // rows that are shorter than a page
      {4, 16, {300, 2000}, {20000, 4}},            // rows that are longer than a page
      {8, 0, {100, 90}, {8, 0}},                   // expanded
      {8, 0, {90, 100}, {0, 8}},                   // expanded in the outer dimension
      {4, 0, {5000, 60}, {4, 4}},                  // windows that overlap
      {2, 0, {40, 70}, {100000, 1300}},            // far apart
      {1, 5, {4099, 3}, {3, 1000000}},             // not a multiple of a tile
      {4, 0, {3, 2}, {0, 0}},                      // one element
  };
  for (const auto& [width, begin, shape, strides] : cases) {
    const std::string want = expected(below, width, begin, shape, strides);
    TileCache tiles;
    Content content;
    Content stored;
    stored.extent(source, 0, below.size());
    content.production(strided(std::move(stored), {width, begin, shape, strides}, tiles, 0));
    ASSERT_EQ(content.size(), want.size());
    std::string got(want.size(), '\0');
    const auto bytes = std::as_writable_bytes(std::span(got));
    ASSERT_EQ(content.copy(0, bytes), 0);
    EXPECT_TRUE(got == want) << shape.size() << " " << shape[0];
    EXPECT_TRUE(content.missing(0, content.size()).empty());
    std::uint32_t seed = 3;
    for (int i = 0; i < 50; ++i) {
      seed = seed * 1664525 + 1013904223;
      const std::size_t at = (seed >> 8) % want.size();
      const std::size_t length = std::min<std::size_t>(want.size() - at, 1 + (seed >> 3) % 5000);
      std::string part(length, '\0');
      ASSERT_EQ(content.copy(at, std::as_writable_bytes(std::span(part))), 0);
      ASSERT_TRUE(part == want.substr(at, length)) << shape.size() << " at " << at;
    }
  }
}

// A tile that was computed only partly must not be used.
TEST(StridedElements, RecoverAfterFailedRead) {
  std::string below(600'000, '\0');
  for (std::size_t i = 0; i < below.size(); ++i) below[i] = static_cast<char>(i * 7 >> 3);
  const TempDir dir;
  write_file(dir / "s", below);
  const Numbers shape{300, 500}, strides{4, 1200};
  const std::string want = expected(below, 4, 0, shape, strides);
  bool has_failed = true;
  unsigned after = 0;
  for (; has_failed; ++after) {
    ASSERT_LT(after, 1000U);
    LateSource source((dir / "s").string());
    TileCache tiles;
    Content stored, content;
    stored.extent(source, 0, below.size());
    content.production(strided(std::move(stored), {4, 0, shape, strides}, tiles, 0));
    std::string got(want.size(), '\0');
    source.fail_a_read(after, EIO);

    const int error = content.copy(0, std::as_writable_bytes(std::span(got)));

    has_failed = source.has_failed();
    source.fail_a_read(0, 0);
    EXPECT_EQ(error, has_failed ? EIO : 0);
    ASSERT_EQ(content.copy(0, std::as_writable_bytes(std::span(got))), 0);
    ASSERT_TRUE(got == want) << after;
  }
  EXPECT_GT(after, 2U);
}

}  // namespace
}  // namespace stfs::test
