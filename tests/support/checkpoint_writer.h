// Writes safetensors checkpoints for tests, independently of the code that reads them. It checks
// nothing: an invalid description gives an invalid file.
//
// Thread safety: several threads may write different files.
#pragma once

#include "tests/support/files.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

using Metadata = std::map<std::string, std::string>;
using Shape = std::vector<std::uint64_t>;

struct Tensor {
  std::string name;   // UTF-8, any characters
  std::string dtype;  // the format's name, "BF16"
  Shape shape;
  std::string bytes;
};

// A fast stream of pseudo-random bytes (splitmix64). The same seed always gives the same bytes. No
// byte is zero, so a hole, a cleared page or a short buffer never looks like data.
class RandomBytes {
 public:
  explicit RandomBytes(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  void fill(std::span<char> out);
  std::string bytes(std::size_t count);

 private:
  std::uint64_t state_;
};

// Returns the bits of an element. Throws std::invalid_argument for a dtype that the format lacks.
std::uint64_t bits_of(std::string_view dtype);

// Returns the size of a tensor of this type and shape, in bytes.
std::uint64_t byte_size(std::string_view dtype, const Shape& shape);

// Returns a tensor of random bytes; BOOL gets only 1s and 0s.
Tensor random_tensor(std::string name, std::string dtype, Shape shape, std::uint64_t seed = 1);

// Builds the JSON of a header. The data of each tensor follows the data of the tensor before it.
class HeaderBuilder {
 public:
  explicit HeaderBuilder(const std::optional<Metadata>& metadata = std::nullopt);
  void add(std::string_view name, std::string_view dtype, const Shape& shape, std::uint64_t length);
  // Returns the finished JSON, padded with spaces to a multiple of 8 bytes like the reference
  // writer's.
  std::string finish();

 private:
  std::string json_ = "{";
  std::uint64_t offset_ = 0;
};

std::string header_json(const std::vector<Tensor>& tensors,
                        const std::optional<Metadata>& metadata = std::nullopt);

// Returns the bytes of a file: length, `json`, data. The JSON may be invalid.
std::string safetensors_bytes(std::string_view json, std::string_view data);

void write_safetensors(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                       const std::optional<Metadata>& metadata = std::nullopt);

// Writes `{"metadata": {"total_size": N}, "weight_map": {tensor: file}}`.
void write_index(const std::filesystem::path& path, const std::map<std::string, std::string>& map,
                 std::uint64_t total_size = 0);

}  // namespace stfs::test
