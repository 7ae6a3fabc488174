// Converts binary32 to a narrower type, rounding to nearest, ties to even (IEEE 754, 4.3.1). The
// host compiler and nvcc compile the same code, so both give the same bits.
//
//   binary16   65520 and more becomes infinite; below 2^-14 the result is subnormal
//   bfloat16   the upper half of binary32
//
// A NaN becomes a quiet NaN with the same sign and the upper bits of its payload.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STFS_HOST_DEVICE __host__ __device__
#else
#define STFS_HOST_DEVICE
#endif

namespace stfs {

// The bits of a binary32 as the bits of a binary16.
STFS_HOST_DEVICE constexpr std::uint16_t to_f16(std::uint32_t bits) {
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520
  if (magnitude < 0x33000000u) return sign;  // below 2^-25, half of the smallest subnormal
  std::uint32_t half = 0;
  std::uint32_t rest = 0;  // rest: the bits cut off; tie: half of the last kept bit
  std::uint32_t tie = 0;
  if (magnitude >= 0x38800000u) {  // 2^-14: normal
    half = (magnitude - 0x38000000u) >> 13;
    rest = magnitude & 0x1fffu;
    tie = 0x1000u;
  } else {
    const std::uint32_t shift = 126u - (magnitude >> 23);  // 14 to 24
    const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    half = significand >> shift;
    rest = significand & ((1u << shift) - 1u);
    tie = 1u << (shift - 1u);
  }
  if (rest > tie || (rest == tie && (half & 1u) != 0)) ++half;
  return static_cast<std::uint16_t>(sign | half);
}

// The bits of a binary32 as the bits of a bfloat16.
STFS_HOST_DEVICE constexpr std::uint16_t to_bf16(std::uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The bits of a binary64 as those of a binary32, rounded to odd: truncated, with the last bit set
// if the result is inexact. Rounding that to a narrower type gives the correctly rounded result
// (Boldo and Melquiond, 2008).
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
