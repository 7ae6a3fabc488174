// Writes safetensors checkpoints for tests, independently of the code that reads them.
//
// Nothing is validated: a description that breaks the format gives a file that breaks it.
// Functions are safe to call from several threads on different files.
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
  std::string dtype;  // as the format names it, "BF16"
  Shape shape;
  std::string bytes;
};

// A fast stream of pseudo-random bytes (splitmix64), the same for the same seed. No byte is zero,
// so that a hole, a cleared page or a short buffer is never taken for data.
class RandomBytes {
 public:
  explicit RandomBytes(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  void fill(std::span<char> out);
  std::string bytes(std::size_t count);

 private:
  std::uint64_t state_;
};

// Bits of one element; throws std::invalid_argument for a dtype that the format lacks.
std::uint64_t bits_of(std::string_view dtype);

// Bytes of a tensor of this type and shape.
std::uint64_t byte_size(std::string_view dtype, const Shape& shape);

// A tensor filled with random bytes; BOOL gets 1s and 0s.
Tensor random_tensor(std::string name, std::string dtype, Shape shape, std::uint64_t seed = 1);

// Builds the JSON of a header, entry by entry, tensors one after the other from offset 0.
class HeaderBuilder {
 public:
  explicit HeaderBuilder(const std::optional<Metadata>& metadata = std::nullopt);
  void add(std::string_view name, std::string_view dtype, const Shape& shape, std::uint64_t length);
  // The finished JSON, filled with spaces to a multiple of 8 bytes, as the reference writer does.
  std::string finish();

 private:
  std::string json_ = "{";
  std::uint64_t offset_ = 0;
};

std::string header_json(const std::vector<Tensor>& tensors,
                        const std::optional<Metadata>& metadata = std::nullopt);

// A file with this JSON, whatever it says, and these bytes after it: length, JSON, data.
std::string safetensors_bytes(std::string_view json, std::string_view data);

void write_safetensors(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                       const std::optional<Metadata>& metadata = std::nullopt);

// Writes `{"metadata": {"total_size": N}, "weight_map": {tensor: file}}`.
void write_index(const std::filesystem::path& path, const std::map<std::string, std::string>& map,
                 std::uint64_t total_size = 0);

}  // namespace stfs::test
