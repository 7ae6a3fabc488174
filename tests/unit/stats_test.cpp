// Compares statistics with sums in long double.
#include "core/values/stats.h"

#include "core/base/vectors.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/types.h"
#include "core/values/moments.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using nlohmann::json;

class LoadedTensor {
 public:
  explicit LoadedTensor(const Tensor& tensor) : path_((dir_ / "m.safetensors").string()) {
    write_safetensors(path_, {tensor});
    const std::vector<std::string> paths{path_};
    checkpoint_ = std::make_unique<const Checkpoint>(paths);
  }
  stfs::Tensor tensor() const { return checkpoint_->tensor(0); }
  const std::string& path() const { return path_; }

 private:
  TempDir dir_;
  std::string path_;
  std::unique_ptr<const Checkpoint> checkpoint_;
};

ValueStats stats_of(const Tensor& tensor) {
  const LoadedTensor loaded(tensor);
  ValueStats stats;
  EXPECT_EQ(value_stats(loaded.tensor().content(), loaded.tensor().dtype,
                        {std::atomic<bool>(false)}, stats),
            0);
  return stats;
}

template <class T>
Tensor tensor_of(const std::string& dtype, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return {"t", dtype, {values.size()}, bytes};
}

template <class T>
ValueStats stats_of(const std::string& dtype, const std::vector<T>& values) {
  return stats_of(tensor_of(dtype, values));
}

std::string stats_json(const ValueStats& stats) {
  return stfs::stats_json(stats, std::vector<std::uint64_t>{stats.count});
}

// Computes the statistics by their definition.
template <class T>
ValueStats reference(const std::vector<T>& values) {
  ValueStats stats;
  long double sum = 0;
  std::uint64_t finite = 0;
  for (const T value : values) {
    const auto x = static_cast<double>(value);
    ++stats.count;
    if (std::isnan(x)) {
      ++stats.nan;
      if (stats.nan <= kPlaces) stats.nan_at.push_back(stats.count - 1);
    } else if (std::isinf(x)) {
      ++stats.inf;
      if (stats.inf <= kPlaces) stats.inf_at.push_back(stats.count - 1);
    } else {
      ++finite;
      if (!stats.largest_at ||
          std::abs(x) > std::abs(static_cast<double>(values[*stats.largest_at]))) {
        stats.largest_at = stats.count - 1;
      }
      if (x == 0) ++stats.zeros;
      stats.min = std::min(stats.min.value_or(x), x);
      stats.max = std::max(stats.max.value_or(x), x);
      sum += static_cast<long double>(value);
    }
  }
  if (finite == 0) return stats;
  const long double mean = sum / static_cast<long double>(finite);
  long double squares = 0;
  for (const T value : values) {
    const auto x = static_cast<long double>(value);
    if (std::isfinite(x)) squares += (x - mean) * (x - mean);
  }
  stats.mean = static_cast<double>(mean);
  stats.std = static_cast<double>(std::sqrt(squares / static_cast<long double>(finite)));
  return stats;
}

void expect_near(std::optional<double> found, std::optional<double> expected, double scale,
                 const std::string& what) {
  ASSERT_EQ(found.has_value(), expected.has_value()) << what;
  if (found) {
    EXPECT_NEAR(*found, *expected, 1e-11 * std::max(scale, std::abs(*expected))) << what;
  }
}

void expect_same(const ValueStats& found, const ValueStats& expected, const std::string& what) {
  EXPECT_EQ(found.count, expected.count) << what;
  EXPECT_EQ(found.zeros, expected.zeros) << what;
  EXPECT_EQ(found.nan, expected.nan) << what;
  EXPECT_EQ(found.inf, expected.inf) << what;
  EXPECT_EQ(found.min, expected.min) << what;
  EXPECT_EQ(found.max, expected.max) << what;
  EXPECT_EQ(found.nan_at, expected.nan_at) << what;
  EXPECT_EQ(found.inf_at, expected.inf_at) << what;
  EXPECT_EQ(found.largest_at, expected.largest_at) << what;
  // Rounding of the sum is relative to the size of the values.
  const double scale =
      std::max(std::abs(expected.min.value_or(0)), std::abs(expected.max.value_or(0)));
  expect_near(found.mean, expected.mean, scale, what + " mean");
  expect_near(found.std, expected.std, scale, what + " std");
}

template <class T>
void check_integers(const std::string& dtype) {
  RandomBytes random(sizeof(T));
  std::vector<T> values{0, 1, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  for (int i = 0; i < 60'000; ++i) values.push_back(static_cast<T>(random.next() >> 5));
  expect_same(stats_of(dtype, values), reference(values), dtype);
  values = {std::numeric_limits<T>::max(), std::numeric_limits<T>::max()};
  expect_same(stats_of(dtype, values), reference(values), dtype + " max");
  values = {std::numeric_limits<T>::min()};
  expect_same(stats_of(dtype, values), reference(values), dtype + " min");
}

TEST(ValueStats, IntegersMatchDefinition) {
  check_integers<std::uint8_t>("U8");
  check_integers<std::int8_t>("I8");
  check_integers<std::uint16_t>("U16");
  check_integers<std::int16_t>("I16");
  check_integers<std::uint32_t>("U32");
  check_integers<std::int32_t>("I32");
  check_integers<std::uint64_t>("U64");
  check_integers<std::int64_t>("I64");
}

TEST(ValueStats, FloatsMatchDefinition) {
  RandomBytes random(2);
  std::vector<float> floats;
  std::vector<double> doubles;
  for (int i = 0; i < 100'000; ++i) {
    const double value = static_cast<double>(random.next() % 2'000'001) / 1e6 - 1;
    floats.push_back(static_cast<float>(value));
    doubles.push_back(value * 1e10 + 3e12);  // the mean is far larger than the deviation
  }
  expect_same(stats_of("F32", floats), reference(floats), "F32");
  expect_same(stats_of("F64", doubles), reference(doubles), "F64");
}

TEST(ValueStats, SmallFloatTypesMatchTheirF32Values) {
  for (const DType dtype :
       {DType::kF4, DType::kF6E2M3, DType::kF6E3M2, DType::kF8E5M2, DType::kF8E4M3, DType::kF8E8M0,
        DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz, DType::kF16, DType::kBF16}) {
    const std::string name(dtype_name(dtype));
    // The tensor has several chunks for every type.
    const Tensor tensor = random_tensor("t", name, {4, 130'000}, 77);
    std::vector<float> values(520'000);
    type_info(dtype).to_f32(std::as_bytes(std::span(tensor.bytes)).data(), values.size(),
                            values.data());

    expect_same(stats_of(tensor), reference(values), name);
  }
}

TEST(ValueStats, CountAndExcludeNanAndInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const ValueStats stats =
      stats_of("F32", std::vector<float>{nan, 1, inf, 3, -inf, -nan, -0.0F, 0.0F, inf});

  EXPECT_EQ(stats.count, 9U);
  EXPECT_EQ(stats.nan, 2U);
  EXPECT_EQ(stats.inf, 3U);
  EXPECT_EQ(stats.zeros, 2U) << "-0 counts as zero";
  EXPECT_EQ(stats.min, 0.0);
  EXPECT_EQ(stats.max, 3.0);
  EXPECT_EQ(stats.mean, 1.0);
  EXPECT_DOUBLE_EQ(*stats.std, std::sqrt(1.5));
}

// Several threads read the 300,000 values in blocks.
TEST(ValueStats, ReportFirstNanInfinityAndLargestPositions) {
  RandomBytes random(11);
  std::vector<float> values(300'000);
  for (float& value : values) value = static_cast<float>(random.next() % 1000);
  for (const std::size_t at : {250'000U, 290'000U}) values[at] = -5000;
  for (std::size_t i = 0; i < 12; ++i) {
    values[140'000 + 11'111 * i] = std::numeric_limits<float>::quiet_NaN();
    values[7 + 20'000 * i] = i % 2 == 0 ? HUGE_VALF : -HUGE_VALF;
  }
  for (const unsigned threads : {1U, 4U}) {
    const LoadedTensor loaded(tensor_of("F32", values));
    ValueStats stats;
    ASSERT_EQ(value_stats(loaded.tensor().content(), DType::kF32,
                          {std::atomic<bool>(false), {}, threads}, stats),
              0);
    expect_same(stats, reference(values), std::to_string(threads));
    EXPECT_EQ(stats.largest_at, 250'000U);
  }
}

TEST(ValueStats, HaveNoMinToStdWithoutFiniteValue) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& values : {std::vector<float>{}, std::vector<float>{nan, nan}}) {
    const ValueStats stats = stats_of("F32", values);
    EXPECT_EQ(stats.count, values.size());
    EXPECT_FALSE(stats.min || stats.max || stats.mean || stats.std);
    EXPECT_EQ(stats.nan, values.size());
  }
}

TEST(ValueStats, CountBoolAsZeroAndOne) {
  const ValueStats stats = stats_of("BOOL", std::vector<std::uint8_t>{0, 1, 1, 1});

  EXPECT_EQ(stats.zeros, 1U);
  EXPECT_EQ(stats.min, 0.0);
  EXPECT_EQ(stats.max, 1.0);
  EXPECT_EQ(stats.mean, 0.75);
  EXPECT_EQ(stats_of("BOOL", std::vector<std::uint8_t>{0, 255}).max, 1.0);
}

TEST(ValueStats, ComplexValuesHaveNoMinToStd) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Tensor tensor =
      tensor_of("C64", std::vector<float>{0, -0.0F, 0, 1, nan, 0, inf, 1, 2, -inf, inf, nan, 3, 4});
  tensor.shape = {7};
  const ValueStats stats = stats_of(tensor);

  EXPECT_EQ(stats.count, 7U);
  EXPECT_EQ(stats.zeros, 1U);
  EXPECT_EQ(stats.nan, 2U);
  EXPECT_EQ(stats.inf, 2U);
  EXPECT_FALSE(stats.min || stats.max || stats.mean || stats.std);
}

TEST(ValueStats, ScalarIsItsOwnMinAndMean) {
  const ValueStats stats = stats_of(Tensor{"t", "U8", {}, "\x07"});

  EXPECT_EQ(stats.count, 1U);
  EXPECT_EQ(stats.min, 7.0);
  EXPECT_EQ(stats.mean, 7.0);
  EXPECT_EQ(stats.std, 0.0);
}

TEST(ValueStats, StayPreciseWithLargeMean) {
  std::vector<double> values(1'000'000, 1e9);
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] += 1;
  const ValueStats stats = stats_of("F64", values);

  EXPECT_DOUBLE_EQ(*stats.mean, 1e9 + 0.5);
  EXPECT_NEAR(*stats.std, 0.5, 1e-6);
}

// Each partial sum is far larger than a value, and loses the same low bits of each value.
TEST(ValueStats, StayPreciseIfSumLosesBits) {
  constexpr double kOffset = 0x1p52;
  std::vector<double> values(3 * 4096, kOffset + 100);
  for (std::size_t i = 0; i < values.size(); i += 4096) {
    values[i] = kOffset;
    values[i + 1] = kOffset + 200;
  }
  const ValueStats stats = stats_of("F64", values);

  EXPECT_EQ(*stats.mean - kOffset, 100.0);
  EXPECT_DOUBLE_EQ(*stats.std, std::sqrt(20'000.0 / 4096));
}

TEST(ValueStats, EqualValuesHaveExactMeanAndZeroStd) {
  const ValueStats stats = stats_of("F64", std::vector<double>(60'000, 0.1));

  EXPECT_EQ(stats.mean, 0.1);
  EXPECT_EQ(stats.std, 0.0);
}

TEST(ValueStats, LargestDoublesAreExact) {
  const ValueStats both = stats_of("F64", std::vector<double>{DBL_MAX, -DBL_MAX});
  EXPECT_EQ(both.max, DBL_MAX);
  EXPECT_EQ(both.min, -DBL_MAX);
  EXPECT_EQ(both.mean, 0.0);
  EXPECT_EQ(both.std, DBL_MAX);

  // The values fill several chunks, and their number is not a power of two.
  const ValueStats equal = stats_of("F64", std::vector<double>(100'003, DBL_MAX));
  EXPECT_EQ(equal.mean, DBL_MAX);
  EXPECT_EQ(equal.std, 0.0);

  const ValueStats some = stats_of("F64", std::vector<double>{1e308, 1.5e308, 1.7e308});
  EXPECT_DOUBLE_EQ(*some.mean, 1.4e308);
  EXPECT_DOUBLE_EQ(*some.std, 2.943920288775949e307);
  EXPECT_EQ(stats_json(some).find("null"), std::string::npos);
}

TEST(ValueStats, SmallestDoublesAreExact) {
  const ValueStats small = stats_of("F64", std::vector<double>{1e-200, 3e-200});
  EXPECT_DOUBLE_EQ(*small.mean, 2e-200);
  EXPECT_DOUBLE_EQ(*small.std, 1e-200);

  const ValueStats subnormal =
      stats_of("F64", std::vector<double>{2 * DBL_TRUE_MIN, 8 * DBL_TRUE_MIN});
  EXPECT_EQ(subnormal.mean, 5 * DBL_TRUE_MIN);
  EXPECT_EQ(subnormal.std, 3 * DBL_TRUE_MIN);
}

// Each block fills several chunks. Some blocks have the same values in reverse order.
TEST(ValueStats, ChunksWithMixedMagnitudesMatchDefinition) {
  constexpr double kLarge = 1.6e308;
  constexpr double kSmall = 3e-220;
  const std::vector<std::vector<double>> blocks{
      {kLarge, 1}, {1, kLarge},          {kSmall, 1},       {1, kSmall},
      {0, kSmall}, {kLarge, kSmall},     {kSmall, kLarge},  {kSmall, 1, kLarge},
      {0, kLarge}, {-kLarge, 5, kLarge}, {kLarge, -kLarge}, {5e-324, 1e300, 1e-300},
  };
  for (const std::vector<double>& block : blocks) {
    std::vector<double> values;
    double largest = 0;
    for (const double value : block) {
      for (int i = 0; i < 60'000; ++i) values.push_back(value * (i % 2 == 0 ? 0.75 : 1));
      largest = std::max(largest, std::abs(value));
    }
    const ValueStats expected = reference(values);
    const ValueStats found = stats_of("F64", values);
    const std::string what = testing::PrintToString(block);

    expect_near(found.mean, expected.mean, largest, what + " mean");
    expect_near(found.std, expected.std, 0, what + " std");
  }
}

TEST(ValueStats, ReturnEINTRWhenStopped) {
  const LoadedTensor loaded(random_tensor("t", "U8", {5'000'000}));
  std::atomic<bool> stop = false;
  std::uint64_t seen = 0;
  ValueStats stats;

  const int error = value_stats(loaded.tensor().content(), loaded.tensor().dtype,
                                {stop,
                                 [&](std::uint64_t bytes) {
                                   seen += bytes;
                                   stop = true;
                                 }},
                                stats);

  EXPECT_EQ(error, EINTR);
  EXPECT_LT(seen, 5'000'000U);
}

TEST(ValueStats, ReportEachReadByte) {
  const LoadedTensor loaded(random_tensor("t", "F16", {500'000}));
  std::uint64_t seen = 0;
  ValueStats stats;

  value_stats(loaded.tensor().content(), loaded.tensor().dtype,
              {std::atomic<bool>(false), [&](std::uint64_t bytes) { seen += bytes; }}, stats);

  EXPECT_EQ(seen, 1'000'000U);
}

TEST(ValueStats, ReturnErrnoOfFailedRead) {
  const LoadedTensor loaded(random_tensor("t", "U8", {1000}));
  std::filesystem::resize_file(loaded.path(), 20);
  ValueStats stats;

  EXPECT_EQ(value_stats(loaded.tensor().content(), loaded.tensor().dtype,
                        {std::atomic<bool>(false)}, stats),
            ESTALE);
}

// All values are k / 2^20, so integer arithmetic computes their sums exactly.
TEST(ValueStats, StayWithinErrorBoundOfExactArithmetic) {
  RandomBytes random(9);
  for (const std::size_t count : {1U, 15U, 4097U, 1'000'000U}) {
    for (const std::int64_t offset : {0, 1 << 23, -(1 << 24)}) {
      std::vector<float> values;
      __int128 sum = 0;
      __int128 squares = 0;
      std::int64_t largest = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t k = offset + static_cast<std::int64_t>(random.next() % 8192) - 4096;
        const auto exact = static_cast<std::int64_t>(static_cast<float>(k));
        values.push_back(std::ldexp(static_cast<float>(k), -20));
        sum += exact;
        squares += static_cast<__int128>(exact) * exact;
        largest = std::max(largest, std::abs(exact));
      }
      const auto n = static_cast<__int128>(count);
      const long double mean = static_cast<long double>(sum) / static_cast<long double>(n);
      const long double std = std::sqrt(static_cast<long double>(n * squares - sum * sum)) /
                              static_cast<long double>(n);
      const ValueStats found = stats_of("F32", values);
      const double bound = std::ldexp(static_cast<double>(largest), -20 - 40);

      EXPECT_NEAR(*found.mean, static_cast<double>(mean * 0x1p-20L), bound) << count;
      EXPECT_NEAR(*found.std, static_cast<double>(std * 0x1p-20L), bound) << count;
    }
  }
}

TEST(ValueStats, DoNotDependOnThreadCount) {
  for (const char* dtype : {"BF16", "F32", "F64", "I32", "F8_E4M3", "F6_E2M3", "C64"}) {
    const LoadedTensor loaded(random_tensor("t", dtype, {1000, 3004}));
    std::string first;
    for (const unsigned threads : {1U, 2U, 3U, 16U}) {
      ValueStats stats;
      ASSERT_EQ(value_stats(loaded.tensor().content(), loaded.tensor().dtype,
                            {.stop = std::atomic<bool>(false), .threads = threads}, stats),
                0);
      if (first.empty()) first = stats_json(stats);
      EXPECT_EQ(stats_json(stats), first) << dtype << " " << threads;
    }
  }
}

TEST(ValueStats, DoNotDependOnVectorTarget) {
  for (const char* dtype : {"BF16", "F16", "F32", "F64", "I16"}) {
    for (const std::uint64_t count : {1U, 63U, 64U, 79U, 4095U, 300'001U}) {
      const LoadedTensor loaded(random_tensor("t", dtype, {count}, count));
      std::set<std::string> found;
      with_each_target([&](const char*) {
        ValueStats stats;
        EXPECT_EQ(value_stats(loaded.tensor().content(), loaded.tensor().dtype,
                              {std::atomic<bool>(false)}, stats),
                  0);
        found.insert(stats_json(stats));
      });
      EXPECT_EQ(found.size(), 1U) << dtype << " " << count;
    }
  }
}

TEST(ValueStats, LateBytesGiveSameResult) {
  const LoadedTensor loaded(random_tensor("t", "BF16", {10'000'000}));
  ValueStats local;
  ASSERT_EQ(value_stats(loaded.tensor().content(), DType::kBF16, {std::atomic<bool>(false)}, local),
            0);
  for (const std::uint64_t kept : {std::uint64_t{2} << 20, std::uint64_t{1} << 40}) {
    LateSource source(loaded.path());
    Content content;
    content.extent(source, loaded.tensor().locator->offset, loaded.tensor().length);
    source.take_bytes_away();
    source.deliver_at_once();
    source.keep_at_most(kept);
    ValueStats late;
    EXPECT_EQ(
        value_stats(content, DType::kBF16, {.stop = std::atomic<bool>(false), .threads = 4}, late),
        0);
    EXPECT_EQ(stats_json(late), stats_json(local)) << kept;
  }
}

TEST(OrderedSum, DoesNotDependOnOrder) {
  struct Text {
    std::string text;
    void add(const Text& right) { text = "(" + text + right.text + ")"; }
  };
  for (const std::size_t count : {0U, 1U, 2U, 3U, 7U, 8U, 21U}) {
    std::string expected;
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    RandomBytes random(count);
    for (int round = 0; round < 20; ++round) {
      OrderedSum<Text> sum;
      for (const std::size_t i : order) {
        sum.add(i, {std::string(1, static_cast<char>('a' + i))});
      }
      if (round == 0) expected = sum.result().text;
      EXPECT_EQ(sum.result().text, expected);
      for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
    }
    std::erase_if(expected, [](char c) { return c == '(' || c == ')'; });
    EXPECT_TRUE(std::ranges::is_sorted(expected) && expected.size() == count);
  }
}

TEST(StatsJson, HasFieldsInOrderAndNullForMissingValues) {
  ValueStats stats;
  stats.count = 3;
  stats.nan = 3;
  EXPECT_EQ(
      stats_json(stats),
      R"({"count":3,"min":null,"max":null,"mean":null,"std":null,"zeros":0,"nan":3,"inf":0,"nan_at":[],"inf_at":[],"largest_at":null})");
}

TEST(StatsJson, WritesPositionsAsIndices) {
  ValueStats stats;
  stats.nan_at = {0, 7};
  stats.inf_at = {11};
  stats.largest_at = 4;
  const std::string text = stfs::stats_json(stats, std::vector<std::uint64_t>{2, 3, 2});
  EXPECT_TRUE(
      text.ends_with(R"(,"nan_at":[[0,0,0],[1,0,1]],"inf_at":[[1,2,1]],"largest_at":[0,2,0]})"))
      << text;
  stats.nan_at = {0};
  const std::string scalar = stfs::stats_json(stats, {});
  EXPECT_TRUE(scalar.ends_with(R"(,"nan_at":[[]],"inf_at":[[]],"largest_at":[]})")) << scalar;
}

// -0 and 0 are equal, so the order of the values would decide whether the minimum is 0 or -0.
TEST(StatsJson, HasNoNegativeZero) {
  const std::string zeros = R"("min":0.0,"max":0.0,"mean":0.0,"std":0.0,)";
  for (const std::size_t count : {1U, 2U, 100U, 5000U}) {
    for (const float last : {0.0F, -0.0F}) {
      std::vector<float> values(count, -0.0F);
      values.back() = last;
      EXPECT_NE(stats_json(stats_of("F32", values)).find(zeros), std::string::npos) << count;
      const std::vector<double> wide(values.begin(), values.end());
      EXPECT_NE(stats_json(stats_of("F64", wide)).find(zeros), std::string::npos) << count;
    }
  }
  // The mean rounds to zero.
  const std::string tiny = stats_json(stats_of("F64", std::vector<double>{-DBL_TRUE_MIN, 0.0}));
  EXPECT_NE(tiny.find(R"("mean":0.0,)"), std::string::npos) << tiny;
  const std::string below = stats_json(stats_of("F64", std::vector<double>{-1.0, -0.0}));
  EXPECT_NE(below.find(R"("max":0.0,)"), std::string::npos) << below;
}

TEST(StatsJson, NumbersRoundTrip) {
  ValueStats stats;
  stats.min = DBL_TRUE_MIN;
  stats.max = DBL_MAX;
  stats.mean = 0.1;
  stats.std = 1.0 / 3;
  stats.count = std::numeric_limits<std::uint64_t>::max();

  const json object = json::parse(stats_json(stats));

  EXPECT_EQ(object["min"].get<double>(), DBL_TRUE_MIN);
  EXPECT_EQ(object["max"].get<double>(), DBL_MAX);
  EXPECT_EQ(object["mean"].get<double>(), 0.1);
  EXPECT_EQ(object["std"].get<double>(), 1.0 / 3);
  EXPECT_EQ(object["count"].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
}

}  // namespace
}  // namespace stfs::test
