// Sums over a run of finite numbers: the inner loops of the statistics.
//
// A run is at most kRun values, which stay in the first-level cache between the two passes over
// them. Each function adds in sixteen lanes, value i in lane i % 16, and then adds the lanes in a
// fixed order; fewer than 64 values it adds one after the other. No operation is fused. So the
// result does not depend on the vectors of the processor.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stfs {

inline constexpr std::size_t kRun = 4096;  // values; a multiple of every block (TypeInfo)

struct RunSums {
  double sum = 0;  // not finite: a value is not, or the sum of large doubles overflowed
  double min = 0;  // of finite values, as max and zeros
  double max = 0;
  std::uint64_t zeros = 0;
};

// At least one value.
RunSums sums_of(std::span<const float> values);
RunSums sums_of(std::span<const double> values);

struct RunDeviations {
  double squares = 0;  // sum of (x - mean)^2
  double sum = 0;      // sum of x - mean
};

RunDeviations deviations_of(std::span<const float> values, double mean);
RunDeviations deviations_of(std::span<const double> values, double mean);

// How the values of a run differ from those of another one, which has as many.
struct RunDifferences {
  double squares = 0;  // sum of (x - y)^2; not finite: a value is not, or the sum overflowed
  double norm = 0;     // sum of y^2; as squares
  double largest = 0;  // |x - y|
  std::uint64_t equal = 0;
};

RunDifferences differences_of(std::span<const float> x, std::span<const double> y);
RunDifferences differences_of(std::span<const double> x, std::span<const double> y);

// Copies the finite values to `out`, in their order: as many as the result says. `out` has 64 more
// than the values. Sets the number of NaN.
std::size_t copy_finite(std::span<const float> values, std::span<float> out, std::uint64_t& nan);
std::size_t copy_finite(std::span<const double> values, std::span<double> out, std::uint64_t& nan);

// The sum of squares, as a sum of floats in any number of lanes: for pictures. Infinite or NaN if a
// value is not finite, and may be infinite beyond 1e19.
float squares_of(std::span<const float> values);

// The largest of the values' keys. A key orders by magnitude, then the positive value is larger; of
// infinity and NaN it is larger than that of any number.
std::uint32_t largest_key(std::span<const float> values);
constexpr std::uint32_t key_of(std::uint32_t bits) { return bits << 1 | (~bits >> 31); }

}  // namespace stfs
