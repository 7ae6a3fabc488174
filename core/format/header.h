// The parsed header of a file of tensors in any format: its metadata, and the name, dtype, shape
// and byte range of each tensor.
//
// Thread safety: const members may be called from any thread. Lifetime: the string_views and spans
// that members return are valid until the Header or the Metadata changes or is destroyed.
#pragma once

#include "core/format/types.h"
#include "core/source/source.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

// Reads bytes of a source while it is loaded, like Source::read(). Returns 0 or an errno.
using ReadBytes = std::function<int(std::uint64_t offset, std::span<std::byte> out)>;

// One tensor. A record has only 48 bytes, because checkpoints may have millions of tensors. The
// name and the shape are in arenas of the Header.
struct TensorRecord {
  std::uint64_t offset = 0;       // bytes, from the start of the source
  std::uint64_t length = 0;       // bytes of the tensor's elements
  std::uint64_t name_begin = 0;   // index in Header::names
  std::uint64_t shape_begin = 0;  // index in Header::dims
  std::uint32_t name_length = 0;  // bytes
  std::uint32_t rank = 0;
  DType dtype = DType::kBool;
  // The rank of the shape that the file stores, if it differs from the tensor's shape (GGUF). The
  // stored dimensions directly precede the tensor's dimensions in Header::dims.
  std::uint8_t stored_rank = kStoredAsShape;
  static constexpr std::uint8_t kStoredAsShape = 255;
  // The index in Header::described, if the `length` bytes at `offset` are not the tensor's elements
  // in row-major order.
  std::uint32_t description = kAsItStands;
  static constexpr std::uint32_t kAsItStands = ~std::uint32_t{0};
};

// The types of metadata values, with GGUF's numbers. safetensors has only strings.
enum class ValueType : std::uint8_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

// The type of a value and its place in the source. Only short values have a text in memory
// (Metadata::Entry), because an array may have a million strings.
struct MetadataValue {
  ValueType type = ValueType::kString;
  ValueType element = ValueType::kString;  // the type of the elements, if `type` is kArray
  bool has_text = true;     // false for an array, and for a string that is too long to keep
  std::uint64_t count = 0;  // the number of elements, if `type` is kArray
  ByteRange encoded;        // the value as the format encodes it; empty for safetensors
};

// The keys and values of `__metadata__` or of a GGUF file. All texts are in one arena, because a
// header may have millions of keys.
class Metadata {
 public:
  // A key and its value: a string unchanged, a number in decimal, "true" or "false", or "" if the
  // value has no text.
  using Entry = std::pair<std::string_view, std::string_view>;

  std::size_t size() const { return entries_.size(); }
  Entry operator[](std::size_t i) const {
    const auto& [begin, key, value] = entries_[i];
    const std::string_view text = text_;
    return {text.substr(begin, key), text.substr(begin + key, value)};
  }
  MetadataValue value(std::size_t i) const {
    return values_.empty() ? MetadataValue{} : values_[i];
  }

  std::vector<std::string> keys() const;

  // Returns the index of the first entry with a key not less than `key`. Call sort() first.
  std::size_t lower_bound(std::string_view key) const;
  // Returns the index of the entry with this key, or nullopt if there is none. Call sort() first.
  std::optional<std::size_t> find(std::string_view key) const;

  // Adds a string. Do not mix this with the other add() in one Metadata.
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, std::string_view text, const MetadataValue& value);
  void sort();  // sorts by key, bytewise; equal keys stay in the order of add()

 private:
  struct Lengths {
    std::uint64_t begin;
    std::uint32_t key, value;  // bytes
  };
  std::string text_;
  std::vector<Lengths> entries_;
  std::vector<MetadataValue> values_;  // empty if all values are strings with a text
};

// A shape that the metadata contains for a tensor with more dimensions than the format can store
// (GGUF).
struct OriginalShape {
  std::string name;
  std::vector<std::uint64_t> dims;
};

// How to make a tensor from bytes that are compressed, or that hold its elements in another order
// than row-major.
struct Description {
  std::uint32_t member;  // index in Header::members
  ByteRange stored;      // the member's data in the source, compressed or not
  struct Deflated {
    std::uint64_t length;  // bytes after decompression
    std::uint32_t crc;     // CRC-32 of these bytes
  };
  std::optional<Deflated> deflated = {};  // set if the member is compressed
  std::uint64_t begin = 0;  // offset of the first element in the member's decompressed bytes
  // The distance between neighbouring elements along each dimension, in bytes. Empty: the elements
  // are row-major without gaps.
  std::vector<std::uint64_t> strides = {};
};

struct Header {
  ByteRange raw;  // the place of the header's text or bytes in the source
  // The number of bytes at the beginning of the source that loading reads directly, without
  // ReadBytes. nullopt: all bytes up to the end of `raw`.
  std::optional<std::uint64_t> beginning = {};
  // Sorted by offset; equal offsets are in the order of the header.
  std::vector<TensorRecord> tensors;
  std::string names;                   // arena of the tensors' names
  std::vector<std::uint64_t> dims;     // arena of the tensors' shapes
  Metadata metadata;                   // sorted by key; keys are unique
  std::vector<std::uint32_t> by_name;  // indices of `tensors`, bytewise by name; names are unique
  // Sorted by name, and already applied to `tensors`. In the first part of a split file some may
  // belong to tensors of other parts.
  std::vector<OriginalShape> original_shapes;
  std::vector<Description> described;
  std::vector<std::string> members;   // the names in the archive of the members in `described`
  std::vector<std::string> warnings;  // printable lines "place: subject: rule"

  std::string_view name(const TensorRecord& tensor) const {
    return std::string_view(names).substr(tensor.name_begin, tensor.name_length);
  }
  std::span<const std::uint64_t> shape(const TensorRecord& tensor) const {
    return std::span(dims).subspan(tensor.shape_begin, tensor.rank);
  }
  // Returns the shape that the file stores, row-major.
  std::span<const std::uint64_t> stored_shape(const TensorRecord& tensor) const {
    if (tensor.stored_rank == TensorRecord::kStoredAsShape) return shape(tensor);
    return std::span(dims).subspan(tensor.shape_begin - tensor.stored_rank, tensor.stored_rank);
  }
};

}  // namespace stfs
