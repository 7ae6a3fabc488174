// Sums over a run of finite numbers: the inner loops of the statistics.
//
// A run has at most kRun values, so that it stays in the first-level cache between the two passes
// over it. Each function adds value i in lane i % 16 of sixteen lanes, and then adds the lanes in a
// fixed order. If there are fewer than 64 values, it adds them one after the other. No operation is
// fused. Therefore the result does not depend on the vector width of the processor.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stfs {

inline constexpr std::size_t kRun = 4096;  // values; a multiple of every block (TypeInfo)

struct RunSums {
  double sum = 0;  // not finite if a value is not, or if the sum of large doubles overflowed
  double min = 0;  // like `max` and `zeros`, valid only if all values are finite
  double max = 0;
  std::uint64_t zeros = 0;
};

// Needs at least one value.
RunSums sums_of(std::span<const float> values);
RunSums sums_of(std::span<const double> values);

struct RunDeviations {
  double squares = 0;  // sum of (x - mean)^2
  double sum = 0;      // sum of x - mean
};

RunDeviations deviations_of(std::span<const float> values, double mean);
RunDeviations deviations_of(std::span<const double> values, double mean);

// The differences between two runs of equal length.
struct RunDifferences {
  double squares = 0;  // sum of (x - y)^2; not finite if a value is not, or if it overflowed
  double norm = 0;     // sum of y^2; not finite for the same reasons
  double largest = 0;  // |x - y|
  std::uint64_t equal = 0;
};

RunDifferences differences_of(std::span<const float> x, std::span<const double> y);
RunDifferences differences_of(std::span<const double> x, std::span<const double> y);

// Copies the finite values to `out` in their order and returns their number. `out` must have room
// for 64 more elements than `values`. Sets `nan` to the number of NaN.
std::size_t copy_finite(std::span<const float> values, std::span<float> out, std::uint64_t& nan);
std::size_t copy_finite(std::span<const double> values, std::span<double> out, std::uint64_t& nan);

// Returns the sum of squares, as a sum of floats in any number of lanes, which is exact enough for
// pictures. It is infinite or NaN if a value is not finite, and may be infinite if a value is
// larger than 1e19.
float squares_of(std::span<const float> values);

// Returns the largest key of the values. Keys are ordered by magnitude, and a positive value has a
// larger key than its negative. The keys of infinity and NaN are larger than the key of any number.
std::uint32_t largest_key(std::span<const float> values);
constexpr std::uint32_t key_of(std::uint32_t bits) { return bits << 1 | (~bits >> 31); }

}  // namespace stfs
