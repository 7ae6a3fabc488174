// The 22 element types of the safetensors format (safetensors/src/tensor.rs, enum Dtype), with the
// names and bit sizes the reference gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stfs {

enum class DType : std::uint8_t {
  kBool,
  kF4,      // OCP MX E2M1, two elements a byte, low nibble first
  kF6E2M3,  // OCP MX, four elements in three bytes
  kF6E3M2,  // OCP MX
  kU8,
  kI8,
  kF8E5M2,      // OCP 8-bit floating point
  kF8E4M3,      // OCP 8-bit floating point, no infinity
  kF8E8M0,      // OCP MX scale, 2^(b-127)
  kF8E4M3Fnuz,  // no infinity, no negative zero, one NaN
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,   // IEEE 754 binary16
  kBF16,  // the upper half of binary32
  kI32,
  kU32,
  kF32,  // IEEE 754 binary32
  kC64,  // two binary32: real, imaginary
  kF64,  // IEEE 754 binary64
  kI64,
  kU64,
};

inline constexpr int kDTypeCount = 22;

// The name in the format: "BF16".
std::string_view dtype_name(DType dtype);

// Bits of one element: 4, 6, 8, 16, 32 or 64.
unsigned dtype_bits(DType dtype);

// The type with this exact name (case matters, as in the reference).
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace stfs
