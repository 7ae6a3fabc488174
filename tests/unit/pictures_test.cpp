// Tests of the sizes of pictures, and that threads, orders and ranges do not change them.
// tests/mount/pictures_test.cpp compares their content with NumPy's pictures through a mount.
#include "core/values/distribution.h"
#include "core/values/picture/histogram.h"
#include "core/values/picture/png.h"
#include "tests/unit/served_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Dimensions = std::vector<std::uint64_t>;

TEST(Png, HasPixelsForShapeUpTo2048By2048) {
  struct Case {
    Dimensions shape;
    std::size_t width, height;
  };
  for (const auto& [shape, width, height] : std::vector<Case>{{{}, 1, 1},
                                                              {{1}, 1, 1},
                                                              {{2}, 2, 1},
                                                              {{3}, 2, 2},
                                                              {{4096}, 64, 64},
                                                              {{5120}, 128, 40},
                                                              {{2048, 2048}, 2048, 2048},
                                                              {{2049, 2048}, 2048, 1025},
                                                              {{151'936, 896}, 896, 2026},
                                                              {{3, 5, 7}, 7, 15},
                                                              {{1, 1, 1}, 1, 1},
                                                              {{10'000'000'000}, 2048, 2008}}) {
    const PictureShape picture = picture_shape(shape);
    const std::string printed = testing::PrintToString(shape);
    EXPECT_EQ(picture.width(), width) << printed;
    EXPECT_EQ(picture.height(), height) << printed;
    EXPECT_EQ(picture.png_bytes(), 831 + height * (13 + width + 5)) << printed;
  }
}

std::vector<float> some_values(std::size_t count) {
  RandomBytes random(count);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.next() % 2001) / 100.0F - 10.0F;
  return values;
}

TEST(Png, HasKnownSizeAndDoesNotDependOnValueOrder) {
  for (const Dimensions& shape : {Dimensions{}, Dimensions{7}, Dimensions{5000, 3000},
                                  Dimensions{3, 4096, 2}, Dimensions{9, 30'000}}) {
    const PictureShape picture = picture_shape(shape);
    const std::vector<float> values = some_values(static_cast<std::size_t>(picture.elements));
    ValueStats stats;
    stats.std = 2;
    Pixels forwards(picture);
    forwards.see(0, std::span<const float>(values), 0);
    Pixels backwards(picture);
    for (std::size_t end = values.size(); end > 0;) {
      const std::size_t begin = end - std::min<std::size_t>(end, 4096);
      backwards.see(begin, std::span<const float>(values).subspan(begin, end - begin), 0);
      end = begin;
    }
    const std::string png = forwards.png(stats);
    EXPECT_EQ(png.size(), picture.png_bytes());
    EXPECT_EQ(png, backwards.png(stats)) << testing::PrintToString(shape);
  }
}

TEST(Png, PrefersNanToInfinityToLargestMagnitude) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const PictureShape picture = picture_shape(Dimensions{1, 4096});  // two elements per pixel
  const auto color = [&](float first, float second) {
    std::vector<float> values(4096);
    values[0] = first;
    values[1] = second;
    Pixels pixels(picture);
    pixels.see(0, std::span<const float>(values), 0);
    ValueStats stats;
    stats.std = 1;
    const std::string png = pixels.png(stats);
    return static_cast<std::uint8_t>(png[8 + 25 + 780 + 8 + 2 + 5 + 1]);  // the first pixel
  };
  EXPECT_EQ(color(0, -0.0F), 126);
  EXPECT_EQ(color(1, -2), picture_color(-2, 3));
  EXPECT_EQ(color(-2, 2), picture_color(2, 3)) << "the positive one of two equal magnitudes";
  EXPECT_EQ(color(1e30F, -inf), 253);
  EXPECT_EQ(color(inf, -nan), 254);
  EXPECT_EQ(color(nan, 3), 254);
}

TEST(Png, SaturatesAtThreeStandardDeviations) {
  EXPECT_EQ(picture_color(3, 3), 252);
  EXPECT_EQ(picture_color(100, 3), 252);
  EXPECT_EQ(picture_color(-100, 3), 0);
  EXPECT_EQ(picture_color(1.5F, 3), 126 + 63);
  EXPECT_EQ(picture_color(5, 0), 252) << "equal values show their sign";
  EXPECT_EQ(picture_color(-5, 0), 0);
  EXPECT_EQ(picture_color(0, 0), 126);
}

// Tests through the views.

TEST(Png, ReadsAnyByteRange) {
  const ServedCheckpoint mounted({random_tensor("w", "F16", {70, 900})});
  const std::string path = ".stfs/png/w.png";
  const std::string whole = mounted.text(path);
  ASSERT_EQ(whole.size(), mounted.at(path)->size);
  EXPECT_EQ(whole, mounted.text(".stfs/png-slice/w/....png"));
  EXPECT_FALSE(mounted->is_computed(mounted.inode(path))) << "its size is not known";

  RandomBytes random(5);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t offset = random.next() % (whole.size() + 10);
    const std::uint64_t length = random.next() % 5000;
    const std::string part = offset < whole.size() ? whole.substr(offset, length) : "";
    std::string found;
    EXPECT_EQ(mounted.read(mounted.inode(path), offset, length, found), 0);
    EXPECT_EQ(found, part) << offset;
  }
}

TEST(Png, ExistsOnlyForFloatTensors) {
  const ServedCheckpoint mounted(
      {random_tensor("f", "BF16", {4, 4}), random_tensor("empty", "F32", {0, 4}),
       random_tensor("i", "I8", {4, 4}), random_tensor("c", "C64", {4})});
  EXPECT_EQ(mounted.names(".stfs/png"), std::vector<std::string>{"f.png"});
  EXPECT_EQ(mounted.names(".stfs/png-slice"), std::vector<std::string>{"f"});
  EXPECT_EQ(mounted.names(".stfs/hist"), (std::vector<std::string>{"f.svg", "i.svg"}));
  const std::uint64_t parts = mounted.inode(".stfs/png-slice/f");
  EXPECT_EQ(mounted.look_up(parts, "1:1.png"), ENOENT) << "no elements";
  EXPECT_EQ(mounted.look_up(parts, "4.png"), ERANGE);
  EXPECT_EQ(mounted.look_up(parts, "x.png"), EINVAL);
  EXPECT_EQ(mounted.look_up(parts, "0:2.png"), 0);
}

TEST(Png, ChangedSourceGivesESTALE) {
  ServedCheckpoint mounted({random_tensor("w", "BF16", {8, 8})});
  std::vector<std::uint64_t> inodes;
  const std::vector<std::string> paths{".stfs/png/w.png", ".stfs/png-slice/w/:,1.png",
                                       ".stfs/hist/w.svg"};
  for (const std::string& path : paths) inodes.push_back(mounted.inode(path));
  std::filesystem::resize_file(mounted.source(), 10);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(mounted->open(inodes[i]), ESTALE) << paths[i];
    std::string bytes;
    EXPECT_EQ(mounted.read(inodes[i], 0, kMost, bytes), ESTALE) << paths[i];
    EXPECT_EQ(bytes, "") << paths[i];
  }
  EXPECT_EQ(mounted.log.size(), 1U);
}

// Tests of the report.

TEST(ReportView, HasSizeZeroAndChangedSourceGivesESTALE) {
  ServedCheckpoint mounted({random_tensor("w", "U8", {8, 8}), random_tensor("c", "C64", {3})});
  const std::uint64_t inode = mounted.inode(".stfs/report.html");
  EXPECT_EQ(mounted.at(".stfs/report.html")->size, 0U);
  EXPECT_EQ(mounted->open(inode), 0);
  const std::string page = mounted.text(".stfs/report.html");
  EXPECT_NE(page.find("</html>"), std::string::npos);
  std::string part;
  EXPECT_EQ(mounted.read(inode, 100, 50, part), 0);
  EXPECT_EQ(part, page.substr(100, 50));
  std::string none;
  EXPECT_EQ(mounted.read(inode, page.size(), 50, none), 0);
  EXPECT_EQ(none, "");
  mounted->release(inode);
  mounted->release(inode);

  ServedCheckpoint changed({random_tensor("w", "BF16", {8, 8})});
  std::filesystem::resize_file(changed.source(), 10);
  const std::uint64_t stale = changed.inode(".stfs/report.html");
  EXPECT_EQ(changed->open(stale), ESTALE);
  std::string bytes;
  EXPECT_EQ(changed.read(stale, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(bytes, "");
}

// Tests of histograms.

TEST(Histograms, CutAndEscapeHostileNamesAndShapes) {
  const std::string name = "<script>&\"\x1b\n" + std::string(1 << 20, 'n') + "</text>";
  const Dimensions shape(50'000, 1);
  Distribution distribution;
  distribution.stats.count = 1;
  const std::string svg = histogram_svg(name, DType::kF32, shape, distribution);
  EXPECT_LT(svg.size(), 20'000U);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find('\x1b'), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt;&amp;&quot;\\x1b\\n"), std::string::npos);
  EXPECT_NE(svg.find("No finite value"), std::string::npos);
}

template <class T>
Distribution distribution_of(DType dtype, const std::vector<T>& values, unsigned threads = 1) {
  Content content;
  content.borrowed({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  Distribution distribution;
  EXPECT_EQ(
      value_distribution(content, dtype, {.stop = std::atomic<bool>(false), .threads = threads},
                         distribution),
      0);
  return distribution;
}

TEST(Histograms, NameOutliersAndKeepRangeOfOtherValues) {
  std::vector<float> values = some_values(100'000);  // -10 to 10
  values[5] = 1e6F;
  values[7] = std::numeric_limits<float>::infinity();
  const Distribution found = distribution_of(DType::kF32, values);
  EXPECT_EQ(found.histogram.above, 1U);
  EXPECT_EQ(found.histogram.below, 0U);
  EXPECT_LT(found.histogram.high, 25);
  EXPECT_EQ(found.stats.inf, 1U);
  const std::string svg = histogram_svg("w", DType::kF32, Dimensions{100'000}, found);
  EXPECT_NE(svg.find("1 value above, the greatest 1e+06"), std::string::npos);
}

TEST(Histograms, UseWholeNumberOfIntegersPerBin) {
  std::vector<std::int32_t> values;
  for (std::int32_t i = -100; i < 200; ++i) values.push_back(i);
  const Distribution found = distribution_of(DType::kI32, values);
  EXPECT_EQ(found.histogram.low, -100.5);
  EXPECT_EQ(found.histogram.counts[0], 3U);
  EXPECT_EQ(found.histogram.counts[99], 3U);
  EXPECT_EQ(found.histogram.counts[100], 0U);
  EXPECT_EQ(found.quantiles[3], 49);
}

TEST(Histograms, CountAllExtremeDoubles) {
  for (const std::vector<double>& values :
       {std::vector<double>{1.7e308, -1.7e308, 0, 1e-320}, std::vector<double>{5e-324, 5e-324},
        std::vector<double>{1e300}, std::vector<double>{-0.0, 0.0}}) {
    const Distribution found = distribution_of(DType::kF64, values);
    std::uint64_t sum = found.histogram.below + found.histogram.above;
    for (const std::uint64_t count : found.histogram.counts) sum += count;
    EXPECT_EQ(sum, values.size());
    EXPECT_LT(found.histogram.low, found.histogram.high);
    for (const double quantile : found.quantiles) EXPECT_TRUE(std::isfinite(quantile));
  }
}

TEST(Histograms, DoNotDependOnThreadCount) {
  const std::vector<float> values = some_values(3'000'000);
  const Distribution one = distribution_of(DType::kF32, values);
  const Distribution many = distribution_of(DType::kF32, values, 5);
  EXPECT_EQ(histogram_svg("w", DType::kF32, {}, one), histogram_svg("w", DType::kF32, {}, many));
}

}  // namespace
}  // namespace stfs::test
