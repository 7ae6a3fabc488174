#include "core/write/header.h"

#include "core/format/safetensors.h"
#include "core/stored/tensor.h"

#include <array>
#include <cstdio>

namespace stfs {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kAlignment = 4096;

}  // namespace

void write_header_row(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                      std::uint64_t begin, std::uint64_t end, TextWriter& out) {
  out.json(name).add(":{\"dtype\":\"").add(dtype_name(dtype));
  out.add("\",\"shape\":");
  write_shape(shape, out);
  out.add(",\"data_offsets\":[").number(begin).add(",").number(end).add("]}");
}

std::optional<std::uint64_t> header_length(std::uint64_t json, std::uint64_t phase) {
  const std::uint64_t least = kLengthBytes + json;
  const std::uint64_t length =
      least + (phase + kAlignment - least % kAlignment) % kAlignment - kLengthBytes;
  return length <= kMaxJsonLength ? std::optional(length) : std::nullopt;
}

std::string header_prefix(std::uint64_t length) {
  std::string prefix;
  for (unsigned i = 0; i < kLengthBytes; ++i) prefix += static_cast<char>(length >> (8 * i) & 0xFF);
  return prefix;
}

std::string shard_name(std::size_t number, std::size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return name.data();
}

std::string index_json(std::string_view metadata,
                       std::span<const std::pair<std::string_view, std::string>> rows) {
  std::string text;
  TextWriter out(text);
  out.add("{\n  \"metadata\": ").add(metadata).add(",\n  \"weight_map\": {");
  const char* separator = "\n    ";
  for (const auto& [name, shard] : rows) {
    out.add(separator).json(name).add(": ").json(shard);
    separator = ",\n    ";
  }
  out.add("\n  }\n}\n");
  return text;
}

}  // namespace stfs
