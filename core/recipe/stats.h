// What the values of a tensor are like.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/digest.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace stfs {

// Counts are of elements. min to std are over the finite values, std being that of the population
// (divided by their number, as NumPy does); none when there is no finite value, and none for C64,
// whose values have no order. A C64 value is zero when both parts are, NaN when one is, infinite
// when one is and none is NaN. BOOL counts as 0 and 1.
struct ValueStats {
  std::uint64_t count = 0;
  std::optional<double> min, max, mean, std;
  std::uint64_t zeros = 0;
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
};

// Of the elements of type `dtype` that `content` holds; reads it once. 0; EINTR as soon as `stop`
// is set; or the errno of a read.
int value_stats(const Content& content, DType dtype, const std::atomic<bool>& stop,
                ValueStats& stats, const Progress& progress = {});

// {"count":..,"min":..,"max":..,"mean":..,"std":..,"zeros":..,"nan":..,"inf":..} without a line
// end. Numbers are printed so that they read back as the same double; what is none is null.
std::string stats_json(const ValueStats& stats);

}  // namespace stfs
