// Converts the blocks of GGUF's quantised types to binary32, with ggml's values bit for bit.
//
// A block holds small integers q, one or more scales and, in some types, minimums. All fields are
// little-endian; a half is an IEEE 754 binary16. Element j of a block of 32 is the low nibble of a
// byte, element j+16 the high one.
//
//   Q4_0 Q5_0 Q8_0 Q8_1 IQ4_NL MXFP4    d * q            32 elements: d, then the integers
//   Q4_1 Q5_1                           d * q + m
//   Q1_0 Q2_0 NVFP4 TQ1_0 TQ2_0 Q8_K    d * q            64 to 256 elements
//   Q3_K Q6_K IQ4_XS                    (d * s) * q      256 elements; s for each 16 or 32
//   Q2_K Q4_K Q5_K                      (d * s) * q - (dmin * m)
//   IQ1_S IQ1_M IQ2_* IQ3_*             (d * s) * row of a codebook (codebooks.h), with signs
//
// A half has 11 significant bits and the other factors have few, so every product is exact in
// binary32. Only the addition of a minimum rounds, once, to nearest. Therefore neither the order of
// multiplication nor a fused operation changes a value, and every processor gives the same bits.
// The payload of a NaN is not defined.
//
// The decoders use the vector instructions that the processor has.
//
// Thread safety: the function may be called from any thread, whatever the thread's rounding mode is
// (ieee.h).
#pragma once

#include "core/format/types.h"

#include <cstddef>

namespace stfs {

// Implements TypeInfo::to_f32 for the types of kind kQuantized; `dtype` must be one of them.
void blocks_to_f32(DType dtype, const std::byte* in, std::size_t elements, float* out);

}  // namespace stfs
