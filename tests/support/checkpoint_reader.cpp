#include "tests/support/checkpoint_reader.h"

#include "tests/support/files.h"

#include <nlohmann/json.hpp>

#include <cstring>
#include <fstream>

namespace stfs::test {
namespace {

std::string read_range(const std::filesystem::path& file, std::uint64_t offset,
                       std::uint64_t length) {
  std::ifstream in;
  in.exceptions(std::ios::failbit | std::ios::badbit);
  in.open(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  std::string bytes(length, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(length));
  return bytes;
}

}  // namespace

std::string TensorEntry::bytes() const { return read_range(source, offset, length); }

std::string TensorEntry::shape_json() const { return nlohmann::json(shape).dump(); }

std::string header_text(const std::filesystem::path& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, read_range(file, 0, 8).data(), 8);
  return read_range(file, 8, length);
}

std::map<std::string, TensorEntry> entries_of(const std::filesystem::path& file) {
  const std::string text = header_text(file);
  std::map<std::string, TensorEntry> entries;
  const nlohmann::json header = nlohmann::json::parse(text);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const std::uint64_t begin = value.at("data_offsets").at(0);
    const std::uint64_t end = value.at("data_offsets").at(1);
    entries[name] = {name, value.at("dtype"),       value.at("shape"),
                     file, 8 + text.size() + begin, end - begin};
  }
  return entries;
}

}  // namespace stfs::test
