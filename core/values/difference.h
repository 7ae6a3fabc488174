// How the bytes and the values of two tensors of equal shape differ, in one pass over both.
//
// Thread safety: the functions may be called from any thread. DifferenceSink::see() may be called
// as ValueSink says; afterwards one thread may call result().
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/fetch_missing.h"
#include "core/values/pass.h"
#include "core/values/stats.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace stfs {

// The difference of two sets of values. NaN equals NaN, and 0 equals -0. Two values are "unlike" if
// they are not equal and at least one of them is not finite, because no number expresses their
// distance.
struct ValueDifference {
  std::uint64_t elements = 0;
  std::uint64_t equal = 0;
  std::uint64_t unlike = 0;
  std::uint64_t nan_in_one = 0;    // unlike pairs of a NaN and another value
  std::uint64_t first_unlike = 0;  // if `unlike` is not 0: the number of the first such element
  // The members below only consider elements that are finite in both tensors. The sums differ from
  // the exact ones by a few units of the last place.
  double largest = 0;               // |a - b|
  std::uint64_t first_largest = 0;  // if `largest` is not 0: the first element with this difference
  double squares = 0;               // sum of (a - b)^2
  double norm = 0;                  // sum of b^2

  // Returns |a - b| / |b| in Frobenius norms. Returns nullopt if there are unlike values, if |b| is
  // 0 and |a| is not, or if a sum of squares overflows or underflows binary64.
  std::optional<double> distance() const;
  double equal_share() const;  // 1 for tensors without elements
};

// Compares the values `a` of a pass with the values `b`, which it reads itself, block by block. The
// result does not depend on the number of threads.
class DifferenceSink : public ValueSink {
 public:
  // `b` contains the same number of elements as the tensor of the pass, with type `dtype`, which
  // must not be C64. `b` and everything that `options` refers to must outlive the sink. Progress
  // counts the bytes of `b`. `values_of_b` sees the values of `b`.
  DifferenceSink(const Content& b, DType dtype, const PassOptions& options,
                 ValueSink* values_of_b = nullptr);

  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;
  void see(std::uint64_t first, std::span<const double> values, unsigned thread) override;

  // Call it after a pass that returned 0. Returns 0, or the errno of reading `b`, as pass_over()
  // does.
  int result(ValueDifference& difference) const;

 private:
  struct Sums {
    std::uint64_t elements = 0, equal = 0;
    double squares = 0, norm = 0;
    void add(const Sums& other);
  };
  struct Lane {                          // the data of one thread
    std::optional<std::uint64_t> block;  // the block that `bytes` contains
    std::vector<std::byte> bytes;
    std::vector<double> values;
    ValueDifference found;  // only unlike values and the largest difference
  };

  template <class T>
  void compare(std::uint64_t first, std::span<const T> a, unsigned thread);
  // Sets Lane::values to `count` elements, starting at element `first`. Returns false after an
  // error.
  bool read(Lane& lane, std::uint64_t first, std::size_t count);

  const Content& b_;
  const DType dtype_;
  const PassOptions& options_;
  ValueSink* const values_of_b_;
  const bool is_here_;
  std::atomic<int> error_ = 0;
  std::vector<Lane> lanes_;
  std::mutex mutex_;
  SequentialReader in_order_;
  OrderedSum<Sums> sum_;
};

// Sets `at` to the first byte in which two recipes of equal size differ, or to nullopt if all bytes
// are equal. Progress counts the bytes of one of them. Returns 0, EINTR, or an errno as pass_over()
// does; then `is_in_b` says which of the two failed.
int first_difference(const Content& a, const Content& b, const PassOptions& options,
                     std::optional<std::uint64_t>& at, bool& is_in_b);

}  // namespace stfs
