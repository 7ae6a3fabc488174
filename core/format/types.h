// The element types of tensors: a table with one row a type, which is all that is known of it. A
// new type is an enumerator, a row in types.cpp and a function in to_f32.cpp.
//
// The first 22 are those of the safetensors format (safetensors/src/tensor.rs, enum Dtype), with
// the names of the reference.
#pragma once

#include <cstddef>
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

enum class TypeKind : std::uint8_t {
  kBool,
  kUnsigned,
  kSigned,
  kFloat,
  kComplex,
  kQuantized,  // real numbers whose blocks hold scales too; none of these is in safetensors
};

// Elements lie in blocks: a block of F4 is 2 elements in 1 byte, one of F6 is 4 in 3 bytes, and one
// of the types of whole bytes is a single element.
struct TypeInfo {
  std::string_view name;  // in the format: "BF16"
  std::uint16_t block_elements = 1;
  std::uint16_t block_bytes = 1;
  TypeKind kind = TypeKind::kFloat;

  // The code of NumPy's array interface, "<f4"; empty when NumPy has none. A type that it lacks is
  // never passed off as another: BF16 is "<V2" and the F8 types "|V1", as ml_dtypes writes them.
  std::string_view npy = {};

  // DLDataTypeCode of DLPack 1.1; kNoDlpack when it has none. It packs types of fewer than 8 bits
  // as safetensors does: the first element stands in the lowest bits.
  std::uint8_t dlpack = kNoDlpack;
  static constexpr std::uint8_t kNoDlpack = 255;

  // Converts elements to binary32 (core/format/to_f32.h); null for kinds without real numbers.
  // Elements are whole blocks; of kFloat any number, and only the bytes that hold them are read.
  // The blocks may begin at any address.
  void (*to_f32)(const std::byte* blocks, std::size_t elements, float* out) = nullptr;

  // Bits of one element. Not for kQuantized, whose elements share bits.
  constexpr unsigned bits() const { return block_bytes * 8U / block_elements; }

  // Bytes of this many elements; nothing when they do not fill whole blocks, or when the number of
  // their bits exceeds 64 bits (a rule of safetensors).
  constexpr std::optional<std::uint64_t> bytes_of(std::uint64_t elements) const {
    std::uint64_t bits = 0;
    if (elements % block_elements != 0 ||
        __builtin_mul_overflow(elements / block_elements, block_bytes * std::uint64_t{8}, &bits)) {
      return std::nullopt;
    }
    return bits / 8;
  }

  // Where the block of an element begins in a tensor that is known to fit, bytes.
  constexpr std::uint64_t offset_of(std::uint64_t element) const {
    return element / block_elements * block_bytes;
  }

  // The elements of whole blocks.
  constexpr std::uint64_t elements_in(std::uint64_t bytes) const {
    return bytes / block_bytes * block_elements;
  }
};

const TypeInfo& type_info(DType dtype);

inline std::string_view dtype_name(DType dtype) { return type_info(dtype).name; }

// The type with this exact name (case matters, as in the reference).
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace stfs
