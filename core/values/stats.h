// Statistics of the values of a tensor, in one pass over its bytes.
//
// min, max and the counts are exact, but for I64 and U64, see below. mean and std differ from their
// exact values by at most
//
//   2^-40 * the largest |x| of a finite value
//
// whatever the values are (the sums of a run, of a block and of the tree of blocks round at most
// some 600 times in a row; stats_test.cpp compares with exact arithmetic). I64 and U64 are rounded
// to binary64 before. A mean lies in [min, max], and the std of equal values is 0. The result does
// not depend on the number of threads, nor on the vectors of the processor.
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

// The counts count elements. min, max, mean and std are taken over the finite values; std is the
// population's (divisor n, as NumPy's default). They are nullopt without a finite value, and for
// C64, whose values have no order. A C64 value is NaN when a part is NaN, else infinite when a part
// is infinite, else zero when both parts are zero. BOOL counts as 0 and 1.
struct ValueStats {
  std::uint64_t count = 0;
  std::optional<double> min, max, mean, std;
  std::uint64_t zeros = 0;
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  // Places: numbers of elements, in row-major order. Those of the first NaN and the first infinite
  // values, kPlaces at most, ascending; and of the first finite value with the largest |x|, nullopt
  // as min is.
  std::vector<std::uint64_t> nan_at = {}, inf_at = {};
  std::optional<std::uint64_t> largest_at = {};
};
inline constexpr std::size_t kPlaces = 8;

// The indices of an element of a tensor of this shape.
std::vector<std::uint64_t> indices_of(std::uint64_t element, std::span<const std::uint64_t> shape);
// "[[0,5],[3,1]]": the indices of some elements, as JSON.
std::string indices_json(std::span<const std::uint64_t> elements,
                         std::span<const std::uint64_t> shape);

// Sees the values that a pass reads. Runs of values come in any order, from PassOptions::threads
// threads.
class ValueSink {
 public:
  ValueSink() = default;
  ValueSink(const ValueSink&) = delete;
  ValueSink& operator=(const ValueSink&) = delete;
  virtual ~ValueSink() = default;

  // `first` is the number of the first value; `thread` is that of PassBlock.
  virtual void see(std::uint64_t first, std::span<const float> values, unsigned thread) = 0;

  // Values of F64, BOOL and integers; I64 and U64 are rounded. By default rounds them to binary32,
  // finite values to finite ones, and calls the other.
  virtual void see(std::uint64_t first, std::span<const double> values, unsigned thread);
};

// Reads the elements of type `dtype` in `content` once and sets `stats`; the sinks see all values
// but those of C64. Returns 0, EINTR soon after `stop` was set, ESTALE when a source changed, or
// the errno of a read. The results are valid only with 0.
int value_stats(const Content& content, DType dtype, const PassOptions& options, ValueStats& stats,
                const std::vector<ValueSink*>& sinks = {});

// value_stats() for the sinks alone.
int see_values(const Content& content, DType dtype, const PassOptions& options,
               const std::vector<ValueSink*>& sinks);

// Elements of type `dtype` as doubles; I64 and U64 are rounded. `bytes` begins with a block and has
// out.size() elements. Not for C64.
void to_doubles(DType dtype, std::span<const std::byte> bytes, std::span<double> out);

// {"count":..,"min":..,"max":..,"mean":..,"std":..,"zeros":..,"nan":..,"inf":..,"nan_at":[[..],..],
// "inf_at":[[..],..],"largest_at":[..]} without a line end, of a tensor of this shape. A number
// parses back to the same double; nullopt becomes null.
std::string stats_json(const ValueStats& stats, std::span<const std::uint64_t> shape);

}  // namespace stfs
