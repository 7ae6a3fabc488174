// The loops over a row of a quantised matrix: they convert codes to binary32 and then apply scales.
// They use the vector instructions of the processor, and produce the same bits with every
// instruction set.
//
// Thread safety: pure functions. Call them while an IeeeArithmetic exists.
#pragma once

#include "core/layer/quantised/packing.h"

#include <cstddef>
#include <cstdint>

namespace stfs {

// Converts `count` elements of row `row` to binary32. `in` points to the first of them, which must
// be aligned. `pitch` is the number of bytes from one row of words to the next, because a field
// down a column may need two words; for kByColumn it is the number of bytes from one column to the
// next. `out` must have room for one block more than `count` elements.
void unpack(const Packing& packing, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
            std::size_t count, float* out);

// The terms that turn a code into a value, applied in this order. A null pointer means that the
// term is absent.
struct Terms {
  const float* zero;
  const float* scale;
  float factor;  // 1: no factor
  const float* bias;
  bool is_divided = false;  // the code is divided by the scale, not multiplied
};
// Computes `count` values that all use the first element of each term.
void apply(const Terms& terms, std::size_t count, float* values);
// Computes `count` values of which number i uses element i of each term.
void apply_each(const Terms& terms, std::size_t count, float* values);
// Multiplies each block of `size` values, 16 or 32, by its own scale.
void scale_blocks(const float* scales, std::size_t size, std::size_t blocks, float* values);

}  // namespace stfs
