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
// A half has 11 significant bits and each factor few, so every product is exact in binary32. Only
// the addition of a minimum rounds, once, to nearest. So no order of multiplication and no fused
// operation changes a value, and every processor gives the same bits. The payload of a NaN is not
// defined.
//
// The functions implement TypeInfo::to_f32, which has their contract: `elements` is a multiple of
// the block. They use the vectors that the processor has.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace stfs {

using BlockDecoder = void(const std::byte* blocks, std::size_t elements, float* out);

BlockDecoder q4_0_to_f32, q4_1_to_f32, q5_0_to_f32, q5_1_to_f32, q8_0_to_f32, q8_1_to_f32;
BlockDecoder q2_k_to_f32, q3_k_to_f32, q4_k_to_f32, q5_k_to_f32, q6_k_to_f32, q8_k_to_f32;
BlockDecoder iq1_s_to_f32, iq1_m_to_f32, iq2_xxs_to_f32, iq2_xs_to_f32, iq2_s_to_f32;
BlockDecoder iq3_xxs_to_f32, iq3_s_to_f32, iq4_nl_to_f32, iq4_xs_to_f32;
BlockDecoder tq1_0_to_f32, tq2_0_to_f32, mxfp4_to_f32, nvfp4_to_f32, q1_0_to_f32, q2_0_to_f32;

// For tests and measurements: the decoders of a type by GGUF's number, one for each set of
// instructions that the processor has, with Highway's name for it ("AVX2"). They leave the
// floating-point environment as it is. Not thread-safe.
struct VectorDecoder {
  const char* vectors;
  BlockDecoder* decode;
};
std::vector<VectorDecoder> all_block_decoders(unsigned gguf);

}  // namespace stfs
