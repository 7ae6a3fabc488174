#include "core/values/moments.h"

#include "core/base/vectors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

// Highway compiles this file once per instruction set and chooses one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/values/moments.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stfs::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLanes = 16;

using Doubles = hn::CappedTag<double, kLanes>;
constexpr std::size_t kInVector = hn::MaxLanes(Doubles());
constexpr std::size_t kVectors = kLanes / kInVector;
using Vectors = std::array<hn::Vec<Doubles>, kVectors>;

// Loads values and converts them to doubles.
HWY_INLINE hn::Vec<Doubles> load(const float* at) {
  return hn::PromoteTo(Doubles(), hn::LoadU(hn::Rebind<float, Doubles>(), at));
}
HWY_INLINE hn::Vec<Doubles> load(const double* at) { return hn::LoadU(Doubles(), at); }

HWY_INLINE Vectors zero_vectors() {
  Vectors vectors;
  for (auto& vector : vectors) vector = hn::Zero(Doubles());
  return vectors;
}

// in_lanes() returns how many values are added by vectors, lane_of() the lane of one of the other
// values.
constexpr std::size_t in_lanes(std::size_t count) {
  constexpr std::size_t kFew = 64;
  return count < kFew ? 0 : count / kLanes * kLanes;
}
constexpr std::size_t lane_of(std::size_t value, std::size_t whole) {
  return whole == 0 ? 0 : value - whole;
}

using LaneSums = std::array<double, kLanes>;

HWY_INLINE LaneSums stored(const Vectors& vectors) {
  LaneSums lanes;
  for (std::size_t i = 0; i < kVectors; ++i) {
    hn::StoreU(vectors[i], Doubles(), lanes.data() + i * kInVector);
  }
  return lanes;
}

// Adds the lanes in a fixed order.
HWY_INLINE double sum_of_lanes(LaneSums lanes) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Computes min, max and zeros. Their order does not matter, so any number of lanes may be used.
template <class T>
HWY_INLINE void extremes_of(const T* HWY_RESTRICT x, std::size_t count, RunSums& sums) {
  const hn::ScalableTag<T> values;
  const hn::RebindToSigned<decltype(values)> integers;
  const std::size_t lanes = hn::Lanes(values);
  T min = x[0];
  T max = x[0];
  std::uint64_t zeros = 0;
  std::size_t i = 0;
  if (count >= lanes) {
    auto least = hn::LoadU(values, x);
    auto greatest = least;
    auto found = hn::Zero(integers);
    for (; i + lanes <= count; i += lanes) {
      const auto some = hn::LoadU(values, x + i);
      least = hn::Min(least, some);
      greatest = hn::Max(greatest, some);
      const auto is_zero = hn::Eq(some, hn::Zero(values));
      found = hn::Sub(found, hn::BitCast(integers, hn::VecFromMask(values, is_zero)));
    }
    min = hn::GetLane(hn::MinOfLanes(values, least));
    max = hn::GetLane(hn::MaxOfLanes(values, greatest));
    zeros = static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(integers, found)));
  }
  for (; i < count; ++i) {
    min = std::min(min, x[i]);
    max = std::max(max, x[i]);
    zeros += x[i] == 0 ? 1 : 0;
  }
  sums.min = static_cast<double>(min);
  sums.max = static_cast<double>(max);
  sums.zeros = zeros;
}

template <class T>
RunSums sums(const T* HWY_RESTRICT x, std::size_t count) {
  RunSums result;
  Vectors sum = zero_vectors();
  const std::size_t whole = in_lanes(count);
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sum[v] = hn::Add(sum[v], load(x + i + v * kInVector));
    }
  }
  LaneSums lanes = stored(sum);
  for (std::size_t i = whole; i < count; ++i) lanes[lane_of(i, whole)] += static_cast<double>(x[i]);
  result.sum = sum_of_lanes(lanes);
  extremes_of(x, count, result);
  return result;
}

template <class T>
RunDeviations deviations(const T* HWY_RESTRICT x, std::size_t count, double mean) {
  Vectors squares = zero_vectors();
  Vectors sum = zero_vectors();
  const auto center = hn::Set(Doubles(), mean);
  const std::size_t whole = in_lanes(count);
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto deviation = hn::Sub(load(x + i + v * kInVector), center);
      squares[v] = hn::Add(squares[v], hn::Mul(deviation, deviation));
      sum[v] = hn::Add(sum[v], deviation);
    }
  }
  LaneSums square_lanes = stored(squares);
  LaneSums lanes = stored(sum);
  for (std::size_t i = whole; i < count; ++i) {
    const double deviation = static_cast<double>(x[i]) - mean;
    square_lanes[lane_of(i, whole)] += deviation * deviation;
    lanes[lane_of(i, whole)] += deviation;
  }
  return {sum_of_lanes(square_lanes), sum_of_lanes(lanes)};
}

template <class T>
RunDifferences differences(const T* HWY_RESTRICT x, const double* HWY_RESTRICT y,
                           std::size_t count) {
  Vectors squares = zero_vectors();
  Vectors norm = zero_vectors();
  auto largest = hn::Zero(Doubles());
  const hn::RebindToSigned<Doubles> integers;
  auto equal = hn::Zero(integers);
  const std::size_t whole = in_lanes(count);
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto a = load(x + i + v * kInVector);
      const auto b = load(y + i + v * kInVector);
      const auto difference = hn::Sub(a, b);
      squares[v] = hn::Add(squares[v], hn::Mul(difference, difference));
      norm[v] = hn::Add(norm[v], hn::Mul(b, b));
      largest = hn::Max(largest, hn::Abs(difference));
      equal = hn::Sub(equal, hn::BitCast(integers, hn::VecFromMask(Doubles(), hn::Eq(a, b))));
    }
  }
  LaneSums square_lanes = stored(squares);
  LaneSums norm_lanes = stored(norm);
  RunDifferences result;
  if (whole > 0) {
    result.largest = hn::GetLane(hn::MaxOfLanes(Doubles(), largest));
    result.equal = static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(integers, equal)));
  }
  for (std::size_t i = whole; i < count; ++i) {
    const auto a = static_cast<double>(x[i]);
    const double difference = a - y[i];
    square_lanes[lane_of(i, whole)] += difference * difference;
    norm_lanes[lane_of(i, whole)] += y[i] * y[i];
    result.largest = std::max(result.largest, difference < 0 ? -difference : difference);
    result.equal += a == y[i] ? 1 : 0;
  }
  result.squares = sum_of_lanes(square_lanes);
  result.norm = sum_of_lanes(norm_lanes);
  return result;
}

std::uint32_t greatest_key(const float* x, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> keys;
  const hn::Rebind<float, decltype(keys)> floats;
  const std::size_t lanes = hn::Lanes(keys);
  std::uint32_t largest = 0;
  std::size_t i = 0;
  if (count >= lanes) {
    auto greatest = hn::Zero(keys);
    for (; i + lanes <= count; i += lanes) {
      const auto bits = hn::BitCast(keys, hn::LoadU(floats, x + i));
      greatest =
          hn::Max(greatest, hn::Or(hn::ShiftLeft<1>(bits), hn::ShiftRight<31>(hn::Not(bits))));
    }
    largest = hn::GetLane(hn::MaxOfLanes(keys, greatest));
  }
  for (; i < count; ++i) largest = std::max(largest, key_of(std::bit_cast<std::uint32_t>(x[i])));
  return largest;
}

template <class T>
std::size_t copy_finite(const T* HWY_RESTRICT x, std::size_t count, T* HWY_RESTRICT out,
                        std::uint64_t& nan) {
  const hn::ScalableTag<T> values;
  const std::size_t lanes = hn::Lanes(values);
  std::size_t kept = 0;
  nan = 0;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto some = hn::LoadU(values, x + i);
    kept += hn::CompressStore(some, hn::IsFinite(some), values, out + kept);
    nan += hn::CountTrue(values, hn::IsNaN(some));
  }
  for (; i < count; ++i) {
    out[kept] = x[i];
    kept += std::isfinite(x[i]) ? 1 : 0;
    nan += std::isnan(x[i]) ? 1 : 0;
  }
  return kept;
}

float squares(const float* HWY_RESTRICT x, std::size_t count) {
  const hn::ScalableTag<float> values;
  const std::size_t lanes = hn::Lanes(values);
  auto sum = hn::Zero(values);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto some = hn::LoadU(values, x + i);
    sum = hn::MulAdd(some, some, sum);
  }
  float result = hn::GetLane(hn::SumOfLanes(values, sum));
  for (; i < count; ++i) result += x[i] * x[i];
  return result;
}

std::size_t copy_finite_floats(const float* x, std::size_t count, float* out, std::uint64_t* nan) {
  return copy_finite(x, count, out, *nan);
}
std::size_t copy_finite_doubles(const double* x, std::size_t count, double* out,
                                std::uint64_t* nan) {
  return copy_finite(x, count, out, *nan);
}
RunDifferences float_differences(const float* x, const double* y, std::size_t count) {
  return differences(x, y, count);
}
RunDifferences double_differences(const double* x, const double* y, std::size_t count) {
  return differences(x, y, count);
}
RunSums float_sums(const float* x, std::size_t count) { return sums(x, count); }
RunSums double_sums(const double* x, std::size_t count) { return sums(x, count); }
RunDeviations float_deviations(const float* x, std::size_t count, double mean) {
  return deviations(x, count, mean);
}
RunDeviations double_deviations(const double* x, std::size_t count, double mean) {
  return deviations(x, count, mean);
}

}  // namespace
}  // namespace stfs::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stfs {
namespace {

HWY_EXPORT(float_sums);
HWY_EXPORT(double_sums);
HWY_EXPORT(float_deviations);
HWY_EXPORT(double_deviations);
HWY_EXPORT(float_differences);
HWY_EXPORT(double_differences);
HWY_EXPORT(greatest_key);
HWY_EXPORT(copy_finite_floats);
HWY_EXPORT(copy_finite_doubles);
HWY_EXPORT(squares);

}  // namespace

RunSums sums_of(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(float_sums)(values.data(), values.size());
}
RunSums sums_of(std::span<const double> values) {
  return HWY_DYNAMIC_DISPATCH(double_sums)(values.data(), values.size());
}
RunDeviations deviations_of(std::span<const float> values, double mean) {
  return HWY_DYNAMIC_DISPATCH(float_deviations)(values.data(), values.size(), mean);
}
RunDeviations deviations_of(std::span<const double> values, double mean) {
  return HWY_DYNAMIC_DISPATCH(double_deviations)(values.data(), values.size(), mean);
}
RunDifferences differences_of(std::span<const float> x, std::span<const double> y) {
  return HWY_DYNAMIC_DISPATCH(float_differences)(x.data(), y.data(), x.size());
}
RunDifferences differences_of(std::span<const double> x, std::span<const double> y) {
  return HWY_DYNAMIC_DISPATCH(double_differences)(x.data(), y.data(), x.size());
}

std::size_t copy_finite(std::span<const float> values, std::span<float> out, std::uint64_t& nan) {
  return HWY_DYNAMIC_DISPATCH(copy_finite_floats)(values.data(), values.size(), out.data(), &nan);
}
std::size_t copy_finite(std::span<const double> values, std::span<double> out, std::uint64_t& nan) {
  return HWY_DYNAMIC_DISPATCH(copy_finite_doubles)(values.data(), values.size(), out.data(), &nan);
}

float squares_of(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(squares)(values.data(), values.size());
}

std::uint32_t largest_key(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(greatest_key)(values.data(), values.size());
}

}  // namespace stfs

#endif
