// How the bytes and the values of two tensors of equal shape differ, in one pass over both.
//
// Thread safety: the functions may be called from any thread. DifferenceSink: see() as ValueSink
// says, then result() from one thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/arrival.h"
#include "core/recipe/content.h"
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

// NaN equals NaN, and 0 equals -0. Two values that are not equal, and of which one is not finite,
// are unlike: no number says how far apart they are.
struct ValueDifference {
  std::uint64_t elements = 0;
  std::uint64_t equal = 0;
  std::uint64_t unlike = 0;
  std::uint64_t nan_in_one = 0;    // of those: a NaN and another value
  std::uint64_t first_unlike = 0;  // with `unlike`: the number of an element
  // The members below are about elements that are finite in both. The sums differ from the exact
  // ones by a few units of the last place.
  double largest = 0;               // |a - b|
  std::uint64_t first_largest = 0;  // with `largest`: the first element that has it
  double squares = 0;               // sum of (a - b)^2
  double norm = 0;                  // sum of b^2

  // |a - b| / |b| in Frobenius norms; nullopt with unlike values, where |b| is 0 and a is not, or
  // where a sum of squares overflows binary64 or vanishes in it.
  std::optional<double> distance() const;
  double equal_share() const;  // 1 without elements
};

// Compares the values `a` of a pass with those of `b`, which it reads itself, block by block. The
// result does not depend on the number of threads.
class DifferenceSink : public ValueSink {
 public:
  // `b` has the elements of the tensor that is passed over, in type `dtype`, which is not C64. `b`
  // and what `options` refers to outlive the sink; progress counts the bytes of `b`. `values_of_b`
  // sees these too.
  DifferenceSink(const Content& b, DType dtype, const PassOptions& options,
                 ValueSink* values_of_b = nullptr);

  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;
  void see(std::uint64_t first, std::span<const double> values, unsigned thread) override;

  // After a pass that returned 0. Returns 0, or the errno of reading `b` as pass_over() does.
  int result(ValueDifference& difference) const;

 private:
  struct Sums {
    std::uint64_t elements = 0, equal = 0;
    double squares = 0, norm = 0;
    void add(const Sums& other);
  };
  struct Lane {                          // of a thread
    std::optional<std::uint64_t> block;  // whose bytes these are
    std::vector<std::byte> bytes;
    std::vector<double> values;
    ValueDifference found;  // the places alone
  };

  template <class T>
  void compare(std::uint64_t first, std::span<const T> a, unsigned thread);
  // Sets Lane::values to `count` elements from `first` on; false after an error.
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

// The first byte in which two recipes of equal size differ, in `at`; nullopt when all bytes are
// equal. Progress counts bytes of one of them. Returns 0, EINTR, or an errno as pass_over() does;
// `is_in_b` then says which of the two failed.
int first_difference(const Content& a, const Content& b, const PassOptions& options,
                     std::optional<std::uint64_t>& at, bool& is_in_b);

}  // namespace stfs
