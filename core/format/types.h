// The element types of tensors: a table with one row per type. A new type needs an enumerator here,
// a row in types.cpp and, if its values are real numbers, a row in to_f32.cpp or
// block_decoders.cpp.
//
// The first types are the types of safetensors, with its names (safetensors/src/tensor.rs, enum
// Dtype). The rest are the block types of GGUF, with the names of ggml in upper case.
//
// Thread safety: the functions may be called from any thread. Lifetime: rows are constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace stfs {

enum class DType : std::uint8_t {
  kBool,
  kF4,      // OCP MX E2M1, two elements in a byte, the first in the low nibble
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

  // Blocks of small integers with a scale (block_decoders.h has their layouts).
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ8_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ8_K,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ3_XXS,
  kIQ1_S,
  kIQ4_NL,
  kIQ3_S,
  kIQ2_S,
  kIQ4_XS,
  kIQ1_M,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0,
};

inline constexpr int kDTypeCount = 49;

using ToF32 = void(const std::byte* blocks, std::size_t elements, float* out);
using FromF32 = void(const float* in, std::size_t elements, std::byte* out);

enum class TypeKind : std::uint8_t {
  kBool,
  kUnsigned,
  kSigned,
  kFloat,
  kComplex,
  kQuantized,  // real numbers in blocks with a scale; only GGUF has such types
};

// Elements are stored in blocks: a block of F4 is 2 elements in 1 byte, a block of F6 is 4 elements
// in 3 bytes, and a block of a type of whole bytes is 1 element.
struct TypeInfo {
  std::string_view name;  // "BF16"
  std::uint16_t block_elements = 1;
  std::uint16_t block_bytes = 1;
  TypeKind kind = TypeKind::kFloat;

  // The type string of NumPy's array interface, such as "<f4"; "" if elements share bytes. A type
  // that NumPy lacks is opaque bytes, as ml_dtypes writes it: BF16 is "<V2", the F8 types are
  // "|V1".
  std::string_view npy = {};

  // DLDataTypeCode of DLPack 1.1; kNoDlpack if DLPack lacks the type. Like safetensors, DLPack
  // packs types of fewer than 8 bits from the lowest bit up.
  std::uint8_t dlpack = kNoDlpack;
  static constexpr std::uint8_t kNoDlpack = 255;

  // The number of the type in a GGUF file (ggml.h, enum ggml_type); kNotInGguf if GGUF lacks it.
  std::uint8_t gguf = kNotInGguf;
  static constexpr std::uint8_t kNotInGguf = 255;

  // Converts `elements` elements to binary32 (to_f32.h, block_decoders.h); null unless the kind is
  // kFloat or kQuantized. `blocks` may be unaligned. For kQuantized, `elements` must be whole
  // blocks. For kFloat, any number is allowed, and no byte after the last element is read.
  ToF32* to_f32 = nullptr;

  // Rounds binary32 to this type, once (from_f32.h); null if stfs never rounds to this type. `out`
  // may be unaligned. If the type is not larger than binary32, `out` may be `in` itself. Otherwise
  // they must not overlap.
  FromF32* from_f32 = nullptr;

  // Returns the bits of one element. Not defined for kQuantized, because its blocks hold a scale
  // too.
  constexpr unsigned bits() const { return block_bytes * 8U / block_elements; }

  // Returns the bytes of `elements` elements. Returns nullopt if they do not fill whole blocks, or
  // if the number of bits overflows 64 bits (a rule of safetensors).
  constexpr std::optional<std::uint64_t> bytes_of(std::uint64_t elements) const {
    std::uint64_t bits = 0;
    if (elements % block_elements != 0 ||
        __builtin_mul_overflow(elements / block_elements, block_bytes * std::uint64_t{8}, &bits)) {
      return std::nullopt;
    }
    return bits / 8;
  }

  // Returns the byte offset of an element's block. The element must be inside a validated tensor,
  // because this does not check for overflow.
  constexpr std::uint64_t offset_of(std::uint64_t element) const {
    return element / block_elements * block_bytes;
  }

  // Returns the number of elements in the whole blocks of `bytes` bytes.
  constexpr std::uint64_t elements_in(std::uint64_t bytes) const {
    return bytes / block_bytes * block_elements;
  }
};

const TypeInfo& type_info(DType dtype);

inline std::string_view dtype_name(DType dtype) { return type_info(dtype).name; }

// Returns the type with this name, or nullopt if there is none. Case matters, as in the reference
// reader.
std::optional<DType> dtype_from_name(std::string_view name);

// Returns the type with this number in a GGUF file, or nullopt if ggml does not read the number.
std::optional<DType> dtype_from_gguf(std::uint32_t number);

}  // namespace stfs
