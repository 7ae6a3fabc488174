// Draws a histogram as an SVG picture for browsers and viewers, with light and dark colours: the
// counts of 128 bins on a linear and on a logarithmic scale, quantiles, statistics, and the number
// of values outside of the bins. The element <metadata> contains the numbers as JSON: low, high,
// counts, below, above, quantiles.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/values/distribution.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

std::string histogram_svg(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                          const Distribution& distribution);

}  // namespace stfs
