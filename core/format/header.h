// The parsed header of a file of tensors, of any format: metadata, and for each tensor its name,
// dtype, shape and byte range.
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

// Reads bytes of a source while it is loaded, as Source::read() does.
using ReadBytes = std::function<int(std::uint64_t offset, std::span<std::byte> out)>;

// One tensor, 48 bytes: checkpoints have millions. Its name and its shape lie in arenas of its
// Header.
struct TensorRecord {
  std::uint64_t offset = 0;       // bytes, from the start of the source
  std::uint64_t length = 0;       // bytes
  std::uint64_t name_begin = 0;   // in Header::names
  std::uint64_t shape_begin = 0;  // in Header::dims
  std::uint32_t name_length = 0;  // bytes
  std::uint32_t rank = 0;
  DType dtype = DType::kBool;
  // The dimensions of the shape that the file stores, where that is not the tensor's (GGUF); they
  // stand before the shape's in Header::dims.
  std::uint8_t stored_rank = kStoredAsShape;
  static constexpr std::uint8_t kStoredAsShape = 255;
  // In Header::described, where `length` bytes at `offset` are not those of the tensor.
  std::uint32_t description = kAsItStands;
  static constexpr std::uint32_t kAsItStands = ~std::uint32_t{0};
};

// The types of values of metadata, with GGUF's numbers. safetensors has strings alone.
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

// A typed value. Its bytes stand in the source, and an array may have a million strings, so only
// short values have a text in memory (Metadata::Entry).
struct MetadataValue {
  ValueType type = ValueType::kString;
  ValueType element = ValueType::kString;  // of kArray
  bool has_text = true;                    // false for an array, and for a string too long to keep
  std::uint64_t count = 0;                 // elements of kArray
  ByteRange encoded;  // the value as the format encodes it; empty for safetensors
};

// The keys and values of `__metadata__` or of a GGUF file. One arena holds their texts: a header
// may have millions of keys.
class Metadata {
 public:
  // key, value: strings as they are, numbers in decimal, "true" or "false"; "" without a text.
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

  // The first entry whose key is not less. Needs sort().
  std::size_t lower_bound(std::string_view key) const;
  // The entry with this key; nullopt when there is none. Needs sort().
  std::optional<std::size_t> find(std::string_view key) const;

  void add(std::string_view key, std::string_view text);
  // All entries of a Metadata are added with their values, or none.
  void add(std::string_view key, std::string_view text, const MetadataValue& value);
  void sort();  // by key, bytewise; equal keys stay in the order of add()

 private:
  struct Lengths {
    std::uint64_t begin;
    std::uint32_t key, value;  // bytes
  };
  std::string text_;
  std::vector<Lengths> entries_;
  std::vector<MetadataValue> values_;  // empty when all are strings with a text
};

// A shape in the metadata, of a tensor with more dimensions than the format can store (GGUF).
struct OriginalShape {
  std::string name;
  std::vector<std::uint64_t> dims;
};

// How a tensor is made of bytes that do not stand in the source as it needs them: they are
// compressed, or its elements lie in another order.
struct Description {
  std::uint32_t member;  // in Header::members
  ByteRange stored;      // its bytes in the source
  // A compressed member: the bytes that it has, and their CRC-32.
  struct Deflated {
    std::uint64_t length;
    std::uint32_t crc;
  };
  std::optional<Deflated> deflated = {};
  std::uint64_t begin = 0;  // of the first element in the member's bytes
  // From an element to the next of each dimension, in bytes; none: row-major, without gaps.
  std::vector<std::uint64_t> strides = {};
};

struct Header {
  ByteRange raw;  // the header's text or bytes in its source
  // Bytes from the source's beginning on that loading reads without ReadBytes; those of `raw` where
  // nothing else is said.
  std::optional<std::uint64_t> beginning = {};
  std::vector<TensorRecord> tensors;   // by offset; equal offsets in the order of the header
  std::string names;                   // arena
  std::vector<std::uint64_t> dims;     // arena
  Metadata metadata;                   // sorted by key; keys are unique
  std::vector<std::uint32_t> by_name;  // indices of `tensors`, bytewise by name; names are unique
  // Applied to the tensors above; the first part of a split file has those of the other parts too.
  std::vector<OriginalShape> original_shapes;
  std::vector<Description> described;
  std::vector<std::string> members;   // names in the archive, of those that descriptions need
  std::vector<std::string> warnings;  // printable lines "place: subject: rule"

  std::string_view name(const TensorRecord& tensor) const {
    return std::string_view(names).substr(tensor.name_begin, tensor.name_length);
  }
  std::span<const std::uint64_t> shape(const TensorRecord& tensor) const {
    return std::span(dims).subspan(tensor.shape_begin, tensor.rank);
  }
  // The shape as the file stores it, row-major.
  std::span<const std::uint64_t> stored_shape(const TensorRecord& tensor) const {
    if (tensor.stored_rank == TensorRecord::kStoredAsShape) return shape(tensor);
    return std::span(dims).subspan(tensor.shape_begin - tensor.stored_rank, tensor.stored_rank);
  }
};

}  // namespace stfs
