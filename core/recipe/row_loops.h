// Codes of a row of a quantised matrix, as binary32.
//
// Thread safety: a pure function.
#pragma once

#include "core/recipe/packing.h"

#include <cstddef>
#include <cstdint>

namespace stfs {

// Writes `count` elements of the row `row`. `in` has the first of them, which is aligned; `pitch`
// is the distance from a row of words to the next, of which a field down a column may need two.
// `out` has room for a whole block more.
void unpack(const Packing& packing, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
            std::size_t count, float* out);

}  // namespace stfs
