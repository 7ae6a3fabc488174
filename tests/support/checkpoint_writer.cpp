#include "tests/support/checkpoint_writer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace stfs::test {
namespace {

std::string quoted(std::string_view text) { return nlohmann::json(text).dump(); }

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 22> kBits = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

}  // namespace

std::uint64_t RandomBytes::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void RandomBytes::fill(std::span<char> out) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  constexpr std::uint64_t kHighs = kOnes << 7;
  while (!out.empty()) {
    std::uint64_t word = next();
    // Moves the high bit of each zero byte to its low bit: 0 becomes 1, other bytes stay.
    word |= (~(((word & ~kHighs) + ~kHighs) | word) & kHighs) >> 7;
    const std::size_t count = std::min(out.size(), sizeof word);
    std::memcpy(out.data(), &word, count);
    out = out.subspan(count);
  }
}

std::string RandomBytes::bytes(std::size_t count) {
  std::string out(count, '\0');
  fill(out);
  return out;
}

std::uint64_t bits_of(std::string_view dtype) {
  for (const auto& [name, bits] : kBits)
    if (name == dtype) return bits;
  throw std::invalid_argument("no dtype " + std::string(dtype));
}

std::uint64_t byte_size(std::string_view dtype, const Shape& shape) {
  std::uint64_t bits = bits_of(dtype);
  for (const std::uint64_t dimension : shape) bits *= dimension;
  return bits / 8;
}

Tensor random_tensor(std::string name, std::string dtype, Shape shape, std::uint64_t seed) {
  std::string bytes = RandomBytes(seed).bytes(byte_size(dtype, shape));
  if (dtype == "BOOL")
    for (char& byte : bytes) byte = static_cast<char>(byte & 1);
  return {std::move(name), std::move(dtype), std::move(shape), std::move(bytes)};
}

HeaderBuilder::HeaderBuilder(const std::optional<Metadata>& metadata) {
  if (metadata) json_ += "\"__metadata__\":" + nlohmann::json(*metadata).dump();
}

void HeaderBuilder::add(std::string_view name, std::string_view dtype, const Shape& shape,
                        std::uint64_t length) {
  if (json_.size() > 1) json_ += ',';
  json_ += quoted(name);
  json_ += ":{\"dtype\":";
  json_ += quoted(dtype);
  json_ += ",\"shape\":[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) json_ += ',';
    json_ += std::to_string(shape[i]);
  }
  json_ += "],\"data_offsets\":[" + std::to_string(offset_);
  offset_ += length;
  json_ += ',' + std::to_string(offset_) + "]}";
}

std::string HeaderBuilder::finish() {
  std::string json = std::move(json_) + '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  return json;
}

std::string header_json(const std::vector<Tensor>& tensors,
                        const std::optional<Metadata>& metadata) {
  HeaderBuilder builder(metadata);
  for (const Tensor& tensor : tensors)
    builder.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes.size());
  return builder.finish();
}

std::string safetensors_bytes(std::string_view json, std::string_view data) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte)
    file += static_cast<char>((std::uint64_t{json.size()} >> (8 * byte)) & 0xff);
  file += json;
  file += data;
  return file;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                       const std::optional<Metadata>& metadata) {
  std::string data;
  for (const Tensor& tensor : tensors) data += tensor.bytes;
  write_file(path, safetensors_bytes(header_json(tensors, metadata), data));
}

void write_index(const std::filesystem::path& path, const std::map<std::string, std::string>& map,
                 std::uint64_t total_size) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_size}}}, {"weight_map", map}};
  write_file(path, index.dump(2) + "\n");
}

}  // namespace stfs::test
