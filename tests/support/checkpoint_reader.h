// Reads safetensors headers for tests, independently of the code under test: the JSON as a tree,
// nothing validated. Duplicate keys and format errors are not this reader's business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace stfs::test {

struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::filesystem::path source;
  std::uint64_t offset = 0;  // bytes, from the start of `source`
  std::uint64_t length = 0;

  std::string bytes() const;       // read from `source`
  std::string shape_json() const;  // "[3,5]"
};

// The JSON of a file's header, byte for byte.
std::string header_text(const std::filesystem::path& file);

// The tensors of a file by name.
std::map<std::string, TensorEntry> entries_of(const std::filesystem::path& file);

}  // namespace stfs::test
