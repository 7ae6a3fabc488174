// Converts floating-point elements to binary32.
//
// A type of 32 bits or fewer converts exactly; F64 rounds to nearest, ties to even (IEEE 754).
// Infinities and the signs of zeros and NaNs are kept. A NaN's payload moves to the upper bits of
// the wider significand, and a signalling NaN becomes quiet (IEEE 754, 6.2). The exceptions are F32
// and BF16: their bits are copied unchanged, even of signalling NaNs, because they are the bits of
// a binary32 or its upper half.
//
//   F16            IEEE 754 binary16           F8_E5M2        OCP OFP8, as binary16's upper byte
//   BF16           upper half of binary32      F8_E4M3        OCP OFP8: no infinity, S.1111.111 NaN
//   F32, F64       IEEE 754                    F8_E4M3FNUZ    bias 8, no infinity, no -0, 0x80 NaN
//   F8_E8M0        OCP MX: 2^(b-127), 255 NaN  F8_E5M2FNUZ    bias 16, no infinity, no -0, 0x80 NaN
//   F4             OCP MX E2M1                 F6_E2M3, F6_E3M2   OCP MX
//
// Elements of fewer than 8 bits are packed from the lowest bit up: the first F4 element is the low
// nibble, the first F6 element the lowest six bits of its three bytes.
//
// It uses the vector instructions that the processor has, and gives the same bits with all of them.
//
// Thread safety: the function may be called from any thread, whatever the thread's rounding mode is
// (ieee.h).
#pragma once

#include "core/format/types.h"

#include <cstddef>

namespace stfs {

// Implements TypeInfo::to_f32 for the types of kind kFloat; `dtype` must be one of them.
void float_to_f32(DType dtype, const std::byte* in, std::size_t elements, float* out);

}  // namespace stfs
