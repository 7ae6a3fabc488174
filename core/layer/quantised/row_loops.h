// The loops over a row of a quantised matrix: codes to binary32, then its scales. They use the
// vectors that the processor has, and give the same bits with all of them.
//
// Thread safety: pure functions. Call them while IeeeArithmetic lives.
#pragma once

#include "core/layer/quantised/packing.h"

#include <cstddef>
#include <cstdint>

namespace stfs {

// Writes `count` elements of the row `row`. `in` has the first of them, which is aligned; `pitch`
// is the distance from a row of words to the next, of which a field down a column may need two, and
// of kByColumn that from a column to the next.
// `out` has room for a whole block more.
void unpack(const Packing& packing, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
            std::size_t count, float* out);

// The terms that make a value of a code, applied in this order; a null pointer: no such term.
struct Terms {
  const float* zero;
  const float* scale;
  float factor;  // 1: none
  const float* bias;
  bool is_divided = false;  // by the scale, not multiplied
};
// Computes `count` values that share the first element of each term.
void apply(const Terms& terms, std::size_t count, float* values);
// Each value has an element of its own.
void apply_each(const Terms& terms, std::size_t count, float* values);
// Multiplies blocks of `size` values, 16 or 32, by a scale each.
void scale_blocks(const float* scales, std::size_t size, std::size_t blocks, float* values);

}  // namespace stfs
