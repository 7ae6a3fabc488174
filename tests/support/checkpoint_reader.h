// Reads safetensors headers for tests, independently of the code under test. It parses the JSON
// into a tree and checks neither for duplicate keys nor for the rules of the format.
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
  std::uint64_t offset = 0;  // the position in `source`, in bytes
  std::uint64_t length = 0;

  std::string bytes() const;       // read from `source`
  std::string shape_json() const;  // "[3,5]"
};

// Returns the JSON of a file's header, unchanged.
std::string header_text(const std::filesystem::path& file);

// Returns the tensors of a file by name.
std::map<std::string, TensorEntry> entries_of(const std::filesystem::path& file);

}  // namespace stfs::test
