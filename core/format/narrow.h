// Rounds numbers to types of 16 and 8 bits: to nearest, ties to even (IEEE 754, 4.3.1). The host
// compiler and nvcc compile the same code, so both give the same bits.
//
// A NaN becomes a quiet NaN with the same sign. In types of 16 bits it keeps the upper bits of its
// payload.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STFS_HOST_DEVICE __host__ __device__
#else
#define STFS_HOST_DEVICE
#endif

namespace stfs {

// A floating-point type: a sign bit, then the exponent, then the significand. The codes below are
// bits of positive numbers.
struct NarrowType {
  unsigned width;        // bits
  unsigned significand;  // bits
  unsigned bias;
  std::uint32_t largest;   // the code of the largest finite number
  std::uint32_t overflow;  // the code of every larger number
  std::uint32_t nan;
  std::uint32_t payload = 0;      // a mask of the bits of the code that keep a NaN's payload
  bool has_negative_zero = true;  // if false, the code of -0 means NaN

  // Returns the least binary32 that overflows. It is halfway between the largest finite number and
  // the next one, or the next greater binary32 if the largest code is even, because a tie then
  // rounds down to it.
  STFS_HOST_DEVICE constexpr std::uint32_t least_overflow() const {
    return (largest << (23 - significand)) + ((127 - bias) << 23) + (1U << (22 - significand)) + 1 -
           largest % 2;
  }
};
inline constexpr NarrowType kNarrowF16{16, 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0x1FF};
inline constexpr NarrowType kNarrowBf16{16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, 0x3F};
inline constexpr NarrowType kNarrowF8E4M3{8, 3, 7, 0x7E, 0x7F, 0x7F};
inline constexpr NarrowType kNarrowF8E5M2{8, 2, 15, 0x7B, 0x7C, 0x7E};
inline constexpr NarrowType kNarrowF8E4M3Fnuz{8, 3, 8, 0x7F, 0x80, 0x80, 0, false};
inline constexpr NarrowType kNarrowF8E5M2Fnuz{8, 2, 16, 0x7F, 0x80, 0x80, 0, false};

// Rounds the bits of a binary32 to the bits of a narrower type.
template <NarrowType kTo>
STFS_HOST_DEVICE constexpr std::uint16_t to_narrow(std::uint32_t bits) {
  constexpr std::uint32_t kSign = 1U << (kTo.width - 1);
  constexpr std::uint32_t kLeast = 128 - kTo.bias;  // the exponent of the least normal number
  constexpr unsigned kCut = 23 - kTo.significand;
  constexpr std::uint32_t kOverflow = kTo.least_overflow();
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t code = 0;
  if (magnitude > 0x7F800000U) {
    code = kTo.nan | ((magnitude >> kCut) & kTo.payload);
  } else if (magnitude >= kOverflow) {
    code = kTo.overflow;
  } else {
    unsigned cut = kCut;
    std::uint32_t whole = magnitude - ((kLeast - 1) << 23);
    if (exponent < kLeast && kLeast > 1) {  // subnormal
      cut += kLeast - exponent;
      if (cut > 24) cut = 25;  // under half of the smallest number
      whole = (magnitude & 0x7FFFFFU) | 0x800000U;
    }
    const std::uint32_t rest = whole & ((1U << cut) - 1U);
    const std::uint32_t tie = 1U << (cut - 1U);
    code = whole >> cut;
    if (rest > tie || (rest == tie && (code & 1U) != 0)) ++code;
  }
  if (!kTo.has_negative_zero && (code == 0 || code == kSign))
    return static_cast<std::uint16_t>(code);
  return static_cast<std::uint16_t>(code | ((bits >> (32 - kTo.width)) & kSign));
}

STFS_HOST_DEVICE constexpr std::uint16_t to_f16(std::uint32_t bits) {
  return to_narrow<kNarrowF16>(bits);
}
STFS_HOST_DEVICE constexpr std::uint16_t to_bf16(std::uint32_t bits) {
  return to_narrow<kNarrowBf16>(bits);
}

// Converts the bits of a binary64 to the bits of a binary32, rounded to odd: truncated, with the
// last bit set if the result is inexact. A second rounding, to a narrower type, then gives the
// correctly rounded result (Boldo and Melquiond, 2008).
STFS_HOST_DEVICE constexpr std::uint32_t to_odd_f32(std::uint64_t bits) {
  const auto sign = static_cast<std::uint32_t>(bits >> 32) & 0x80000000u;
  const std::uint64_t magnitude = bits & 0x7fffffffffffffffu;
  if (magnitude > 0x7ff0000000000000u) {
    return sign | 0x7fc00000u | (static_cast<std::uint32_t>(magnitude >> 29) & 0x3fffffu);
  }
  if (magnitude == 0x7ff0000000000000u) return sign | 0x7f800000u;
  if (magnitude >= 0x47f0000000000000u) return sign | 0x7f7fffffu;  // 2^128: finite, and odd
  if (magnitude >= 0x3810000000000000u) {                           // 2^-126: normal
    const std::uint64_t kept = (magnitude - 0x3800000000000000u) >> 29;
    return sign | static_cast<std::uint32_t>(kept | ((magnitude & 0x1fffffffu) != 0 ? 1u : 0u));
  }
  const std::uint64_t exponent = magnitude >> 52;
  if (exponent < 873) return sign | (magnitude != 0 ? 1u : 0u);  // under 2^-149
  const std::uint64_t shift = 926 - exponent;                    // 30 to 53
  const std::uint64_t significand = (magnitude & 0xfffffffffffffu) | 0x10000000000000u;
  const bool is_exact = (significand & ((std::uint64_t{1} << shift) - 1)) == 0;
  return sign | static_cast<std::uint32_t>((significand >> shift) | (is_exact ? 0u : 1u));
}

}  // namespace stfs
