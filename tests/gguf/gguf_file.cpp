#include "tests/gguf/gguf_file.h"

namespace stfs::test {
namespace {

void pad(std::string& bytes, std::uint64_t alignment) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
}

}  // namespace

std::string gguf_string(std::string_view text) {
  return little<std::uint64_t>(text.size()) + std::string(text);
}

std::string gguf_array(ValueType element, std::uint64_t count, const std::string& elements) {
  return little(static_cast<std::uint32_t>(element)) + little(count) + elements;
}

void GgufFile::key(std::string_view name, ValueType type, const std::string& value) {
  keys_ += gguf_string(name) + little(static_cast<std::uint32_t>(type)) + value;
  ++key_count_;
}

void GgufFile::tensor(std::string_view name, const std::vector<std::int64_t>& dims,
                      std::uint32_t type, std::string_view bytes) {
  infos_ += gguf_string(name) + little(static_cast<std::uint32_t>(dims.size()));
  for (const std::int64_t dim : dims) infos_ += little(dim);
  infos_ += little(type) + little<std::uint64_t>(data_.size());
  data_ += bytes;
  pad(data_, alignment);
  ++tensor_count_;
}

std::string GgufFile::header() const {
  std::string bytes = "GGUF" + little(version) + little(tensor_count_) + little(key_count_);
  bytes += keys_ + infos_;
  if (tensor_count_ > 0) pad(bytes, alignment);
  return bytes;
}

std::string GgufFile::bytes() const { return header() + data_; }

}  // namespace stfs::test
