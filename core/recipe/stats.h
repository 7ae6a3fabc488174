// Statistics of the values of a tensor.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/digest.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

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
};

// Reads the elements of type `dtype` in `content` once and sets `stats`. Returns 0, EINTR soon
// after `stop` was set, ESTALE when a source changed, or the errno of a read. `stats` is valid only
// with 0.
int value_stats(const Content& content, DType dtype, const std::atomic<bool>& stop,
                ValueStats& stats, const Progress& progress = {});

// {"count":..,"min":..,"max":..,"mean":..,"std":..,"zeros":..,"nan":..,"inf":..} without a line
// end. A number parses back to the same double; nullopt becomes null.
std::string stats_json(const ValueStats& stats);

}  // namespace stfs
