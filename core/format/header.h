// What a file of tensors says before their bytes, whatever its format: which tensors lie where, and
// metadata.
#pragma once

#include "core/format/types.h"
#include "core/source/source.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

// One tensor, 48 bytes. Names and shapes lie in arenas of the Header that holds it.
struct TensorRecord {
  std::uint64_t offset = 0;  // bytes, from the start of the source
  std::uint64_t length = 0;  // bytes
  std::uint64_t name_begin = 0;
  std::uint64_t shape_begin = 0;
  std::uint32_t name_length = 0;  // bytes
  std::uint32_t rank = 0;
  DType dtype = DType::kBool;
};

// What the file says of itself, keys and values (`__metadata__`). In one arena, since a header may
// be made of nothing else.
class Metadata {
 public:
  using Entry = std::pair<std::string_view, std::string_view>;  // key and value, borrowed

  std::size_t size() const { return entries_.size(); }
  Entry operator[](std::size_t i) const {
    const auto& [begin, key, value] = entries_[i];
    const std::string_view text = text_;
    return {text.substr(begin, key), text.substr(begin + key, value)};
  }

  void add(std::string_view key, std::string_view value);
  void sort();  // by key; equal keys stay in the order in which they were added

 private:
  struct Lengths {
    std::uint64_t begin;
    std::uint32_t key, value;  // bytes
  };
  std::string text_;
  std::vector<Lengths> entries_;
};

// A parsed header: the tensors of one source. Immutable once the checkpoint is loaded; the views it
// returns live as long as it.
struct Header {
  ByteRange raw;  // where it stands in its source, as text or as bytes
  std::vector<TensorRecord>
      tensors;                      // in the order of their bytes; ties as they stand in the header
  std::string names;                // arena
  std::vector<std::uint64_t> dims;  // arena
  Metadata metadata;                // sorted by key, all different
  std::vector<std::uint32_t> by_name;  // indices of `tensors` in the bytewise order of their names

  std::string_view name(const TensorRecord& tensor) const {
    return std::string_view(names).substr(tensor.name_begin, tensor.name_length);
  }
  std::span<const std::uint64_t> shape(const TensorRecord& tensor) const {
    return std::span(dims).subspan(tensor.shape_begin, tensor.rank);
  }
};

}  // namespace stfs
