// Writes GGUF files for tests, independently of the code that reads them. Accepts invalid values.
#pragma once

#include "core/format/header.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

// Returns a value as little-endian bytes.
template <class T>
std::string little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string gguf_string(std::string_view text);  // the length, then the bytes
// Returns the value of an array: the type of the elements, their number, their bytes.
std::string gguf_array(ValueType element, std::uint64_t count, const std::string& elements);

class GgufFile {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // alignment of the layout; the key is not added

  void key(std::string_view name, ValueType type, const std::string& value);
  void key(std::string_view name, std::string_view text) {
    key(name, ValueType::kString, gguf_string(text));
  }
  // `dims` has the fastest dimension first, as in the file. The tensor follows the previous one.
  void tensor(std::string_view name, const std::vector<std::int64_t>& dims, std::uint32_t type,
              std::string_view bytes);

  std::string header() const;  // all bytes before the data
  std::string bytes() const;

 private:
  std::string keys_, infos_, data_;
  std::uint64_t key_count_ = 0;
  std::uint64_t tensor_count_ = 0;
};

}  // namespace stfs::test
