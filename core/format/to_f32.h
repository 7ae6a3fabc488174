// Converts floating-point elements to binary32.
//
// A type of 32 bits or fewer converts exactly; F64 rounds to nearest, ties to even (IEEE 754).
// Infinities and the signs of zeros and NaNs are kept. A NaN's payload moves to the upper bits of
// the wider significand, and a signalling NaN becomes quiet (IEEE 754, 6.2). The bits of F32 and
// BF16 are copied unchanged, signalling NaNs too: they are binary32 already.
//
//   F16            IEEE 754 binary16           F8_E5M2        OCP OFP8, as binary16's upper byte
//   BF16           upper half of binary32      F8_E4M3        OCP OFP8: no infinity, S.1111.111 NaN
//   F32, F64       IEEE 754                    F8_E4M3FNUZ    bias 8, no infinity, no -0, 0x80 NaN
//   F8_E8M0        OCP MX: 2^(b-127), 255 NaN  F8_E5M2FNUZ    bias 16, likewise
//   F4             OCP MX E2M1                 F6_E2M3, F6_E3M2   OCP MX
//
// Elements of fewer than 8 bits are packed from the lowest bit up: the first F4 element is the low
// nibble, the first F6 element the lowest six bits of its three bytes.
//
// The functions implement TypeInfo::to_f32, which has their contract. They use AVX2 and F16C where
// the processor has them.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>

namespace stfs {

void f4_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f6_e2m3_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f6_e3m2_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f8_e5m2_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f8_e4m3_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f8_e8m0_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f8_e4m3fnuz_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f8_e5m2fnuz_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f16_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void bf16_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f32_to_f32(const std::byte* blocks, std::size_t elements, float* out);
void f64_to_f32(const std::byte* blocks, std::size_t elements, float* out);

// The same without AVX2 and F16C: for other processors, and for tests to compare with.
void f16_to_f32_portable(const std::byte* blocks, std::size_t elements, float* out);
void bf16_to_f32_portable(const std::byte* blocks, std::size_t elements, float* out);
void f64_to_f32_portable(const std::byte* blocks, std::size_t elements, float* out);

}  // namespace stfs
