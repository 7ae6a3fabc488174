// Statistics of the values of a tensor, in one pass over its bytes.
//
// min, max and the counts are exact, except for I64 and U64. mean and std differ from their exact
// values by at most
//
//   2^-40 * the largest |x| of a finite value
//
// for any values: the sums of a run, of a block and of the tree of blocks round at most about 600
// times in sequence, and stats_test.cpp compares them with exact arithmetic. I64 and U64 are first
// rounded to binary64. The mean is in [min, max], and the std of equal values is 0. The result
// depends neither on the number of threads nor on the vector width of the processor.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/values/pass.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs {

// The counts count elements. min, max, mean and std only consider finite values; std is the
// population's standard deviation (divisor n, like NumPy's default). They are nullopt if there is
// no finite value, and for C64, because complex numbers have no order. A C64 value is NaN if a part
// is NaN, else infinite if a part is infinite, else zero if both parts are zero. BOOL counts as 0
// and 1.
struct ValueStats {
  std::uint64_t count = 0;
  std::optional<double> min, max, mean, std;
  std::uint64_t zeros = 0;
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  // Positions of elements in row-major order: of the first NaN and the first infinite values, at
  // most kPlaces each, ascending; and of the first finite value with the largest |x|, which is
  // nullopt if `min` is.
  std::vector<std::uint64_t> nan_at = {}, inf_at = {};
  std::optional<std::uint64_t> largest_at = {};
};
inline constexpr std::size_t kPlaces = 8;

// Returns the indices of an element in a tensor of this shape.
std::vector<std::uint64_t> indices_of(std::uint64_t element, std::span<const std::uint64_t> shape);
// Returns the indices of several elements as JSON: "[[0,5],[3,1]]".
std::string indices_json(std::span<const std::uint64_t> elements,
                         std::span<const std::uint64_t> shape);

// Sees the values that a pass reads. Runs of values arrive in any order, from PassOptions::threads
// threads.
class ValueSink {
 public:
  ValueSink() = default;
  ValueSink(const ValueSink&) = delete;
  ValueSink& operator=(const ValueSink&) = delete;
  virtual ~ValueSink() = default;

  // `first` is the number of the first value; `thread` is PassBlock::thread.
  virtual void see(std::uint64_t first, std::span<const float> values, unsigned thread) = 0;

  // For F64, BOOL and integers; I64 and U64 are rounded to binary64. By default rounds the values
  // to binary32 and calls the other see(). Finite values stay finite.
  virtual void see(std::uint64_t first, std::span<const double> values, unsigned thread);
};

// Reads the elements of type `dtype` in `content` once and sets `stats`. The sinks see all values,
// except for C64. Returns 0, EINTR soon after `stop` was set, ESTALE if a source has changed, or
// the errno of a read. The results are valid only if it returns 0.
int value_stats(const Content& content, DType dtype, const PassOptions& options, ValueStats& stats,
                const std::vector<ValueSink*>& sinks = {});

// Like value_stats(), but only for the sinks.
int see_values(const Content& content, DType dtype, const PassOptions& options,
               const std::vector<ValueSink*>& sinks);

// Converts elements of type `dtype` to doubles; I64 and U64 are rounded. `bytes` must begin with a
// whole block and contain out.size() elements. Not for C64.
void to_doubles(DType dtype, std::span<const std::byte> bytes, std::span<double> out);

// Returns
// {"count":..,"min":..,"max":..,"mean":..,"std":..,"zeros":..,"nan":..,"inf":..,"nan_at":[[..],..],
// "inf_at":[[..],..],"largest_at":[..]} without a newline, for a tensor of this shape. Each number
// parses back to the same double; nullopt becomes null.
std::string stats_json(const ValueStats& stats, std::span<const std::uint64_t> shape);

}  // namespace stfs
