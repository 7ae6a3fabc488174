// Floating-point elements to binary32.
//
// Every value of every type of 32 bits or fewer is exact; F64 is rounded to nearest, ties to even
// (IEEE 754). Infinities stay, signs of zeros and NaNs stay. A NaN's payload moves to the upper
// bits of the wider significand; a signalling NaN becomes quiet, as IEEE 754 asks of a conversion
// (6.2), but in F32 and BF16, whose bits are those of a binary32 already and are not touched.
//
//   F16            IEEE 754 binary16           F8_E5M2        OCP OFP8, as binary16's upper byte
//   BF16           upper half of binary32      F8_E4M3        OCP OFP8: no infinity, S.1111.111 NaN
//   F32, F64       IEEE 754                    F8_E4M3FNUZ    bias 8, no infinity, no -0, 0x80 NaN
//   F8_E8M0        OCP MX: 2^(b-127), 255 NaN  F8_E5M2FNUZ    bias 16, likewise
//   F4             OCP MX E2M1                 F6_E2M3, F6_E3M2   OCP MX
//
// Sub-byte elements are packed from the lowest bit up: F4 takes the low nibble first, and the four
// F6 elements of three bytes stand in the order of their bits.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstddef>
#include <memory>
#include <span>

namespace stfs {

// Whether convert_to_f32 knows the type: the floating ones, and not complex.
bool has_f32(DType dtype);

// Converts out.size() elements. `in` begins at a byte's boundary and holds as many elements, whole
// bytes of them. Any alignment. Uses AVX2 and F16C where the processor has them.
void convert_to_f32(DType dtype, std::span<const std::byte> in, std::span<float> out);

// The same without special instructions: what the other is tested against, and runs elsewhere.
void convert_to_f32_portable(DType dtype, std::span<const std::byte> in, std::span<float> out);

// The elements of `raw`, which are `count` of type `dtype`, as binary32, converted as they are
// read.
std::unique_ptr<const Producer> as_f32(Content raw, DType dtype, std::uint64_t count);

}  // namespace stfs
