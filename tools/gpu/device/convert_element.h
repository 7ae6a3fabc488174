// Converts one element for --as. Each thread of the kernel does this, and so does a fake device on
// the host, in a loop.
//
// Elements of at most 16 bits are looked up in a table with a binary32 value for each code. The
// host makes the table (core/format/to_f32.h), so that the meaning of a type is defined in one
// place. F32 and F64 are rounded from their bits (core/format/narrow.h).
#pragma once

#include "core/format/narrow.h"

#include <cstdint>

namespace stfs::gpu {

enum class Narrow : std::uint32_t { kF32, kF16, kBF16 };

// The arguments of the kernel, passed by value. Pointers are device addresses. `in` begins at a
// byte boundary; `out` is aligned for its elements.
struct ConvertTask {
  const unsigned char* in;
  void* out;
  const std::uint32_t* table;  // bits of binary32 values: 2^from_bits entries, or null
  unsigned long long* counts;  // the kernel adds to them: [0] out of range, [1] NaN
  std::uint64_t count;         // elements
  std::uint32_t from_bits;     // 4, 6, 8, 16, 32 (F32) or 64 (F64)
  Narrow to;
};

// The name of the kernel, which takes a ConvertTask.
inline constexpr char kConvertKernel[] = "stfs_convert";

inline constexpr unsigned kConvertThreads = 256;  // threads per block

// The outcome of the conversion of an element.
enum class ValueKind : std::uint32_t { kNumber, kOutOfRange, kNan };

// Returns a binary64 value as a binary32 value, both as bits, rounded to nearest, ties to even. The
// device's own conversion is not used, because it drops the payload of a NaN.
STFS_HOST_DEVICE constexpr std::uint32_t to_f32(std::uint64_t bits) {
  const auto sign = static_cast<std::uint32_t>(bits >> 32) & 0x80000000u;
  const std::uint64_t magnitude = bits & 0x7fffffffffffffffu;
  if (magnitude > 0x7ff0000000000000u) return to_odd_f32(bits);
  if (magnitude >= 0x47f0000000000000u) return sign | 0x7f800000u;  // 2^128
  std::uint64_t wide = magnitude - 0x3800000000000000u;             // with binary32's exponent bias
  std::uint64_t shift = 29;
  if (magnitude < 0x3810000000000000u) {  // below 2^-126: subnormal
    const std::uint64_t exponent = magnitude >> 52;
    if (exponent < 873) return sign;  // below 2^-150, half of the smallest
    shift = 926 - exponent;           // 30 to 53
    wide = (magnitude & 0xfffffffffffffu) | 0x10000000000000u;
  }
  const std::uint64_t rest = wide & ((std::uint64_t{1} << shift) - 1);
  const std::uint64_t tie = std::uint64_t{1} << (shift - 1);
  auto kept = static_cast<std::uint32_t>(wide >> shift);
  if (rest > tie || (rest == tie && (kept & 1u) != 0)) ++kept;  // may become infinite
  return sign | kept;
}

// Returns the bits of an element. `in` is little-endian and need not be aligned.
STFS_HOST_DEVICE inline std::uint64_t element_bits(const unsigned char* in, std::uint64_t index,
                                                   std::uint32_t bits) {
  const std::uint64_t at = index * bits;
  const unsigned char* from = in + at / 8;
  const auto shift = static_cast<std::uint32_t>(at % 8);
  // Only the bytes that hold a part of the element.
  const std::uint32_t bytes = (shift + bits + 7) / 8;
  std::uint64_t window = 0;
  for (std::uint32_t i = 0; i < bytes; ++i) window |= static_cast<std::uint64_t>(from[i]) << 8 * i;
  window >>= shift;
  return bits == 64 ? window : window & ((std::uint64_t{1} << bits) - 1);
}

STFS_HOST_DEVICE inline ValueKind convert_element(const ConvertTask& task, std::uint64_t index) {
  const std::uint64_t code = element_bits(task.in, index, task.from_bits);
  std::uint32_t value = 0;  // bits of binary32
  bool is_finite = false;
  if (task.from_bits == 64) {
    is_finite = (code & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    value = task.to == Narrow::kF32 ? to_f32(code) : to_odd_f32(code);
  } else {
    value = task.from_bits == 32 ? static_cast<std::uint32_t>(code) : task.table[code];
    is_finite = (value & 0x7f800000u) != 0x7f800000u;
  }

  bool is_infinite = false;
  if (task.to == Narrow::kF32) {
    static_cast<std::uint32_t*>(task.out)[index] = value;
    is_infinite = (value & 0x7fffffffu) == 0x7f800000u;
  } else if (task.to == Narrow::kF16) {
    const std::uint16_t half = to_f16(value);
    static_cast<std::uint16_t*>(task.out)[index] = half;
    is_infinite = (half & 0x7fffu) == 0x7c00u;
  } else {
    const std::uint16_t half = to_bf16(value);
    static_cast<std::uint16_t*>(task.out)[index] = half;
    is_infinite = (half & 0x7fffu) == 0x7f80u;
  }
  if (!is_finite) return (value & 0x7fffffffu) > 0x7f800000u ? ValueKind::kNan : ValueKind::kNumber;
  return is_infinite ? ValueKind::kOutOfRange : ValueKind::kNumber;
}

}  // namespace stfs::gpu
