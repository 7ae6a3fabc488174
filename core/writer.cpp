#include "core/writer.h"

#include "core/catalogue.h"
#include "core/table.h"
#include "core/text.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kMaxJsonLength = 100'000'000;
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kAlignment = 4096;

// The rows of the JSON: 0 opens the object and holds the metadata, the last closes it.
struct Rows {
  const Checkpoint* checkpoint;
  std::vector<std::uint32_t> tensors;
  std::vector<std::uint64_t> begins;  // of each tensor's bytes in the data; then the end

  void append(std::uint64_t row, std::string& text) const {
    if (row == 0) return append_metadata(text);
    if (row == tensors.size() + 1) {
      text += '}';
      return;
    }
    const auto i = static_cast<std::size_t>(row - 1);
    const Tensor tensor = checkpoint->tensor(tensors[i]);
    if (i > 0 || !checkpoint->metadata().empty()) text += ',';
    text += json_string(tensor.name);
    ((text += ":{\"dtype\":\"") += dtype_name(tensor.dtype)) += "\",\"shape\":";
    (text += shape_json(tensor.shape)) += ",\"data_offsets\":[";
    ((text += std::to_string(begins[i])) += ',') += std::to_string(begins[i + 1]);
    text += "]}";
  }

  void append_metadata(std::string& text) const {
    text += '{';
    if (checkpoint->metadata().empty()) return;
    text += "\"__metadata__\":{";
    const char* separator = "";
    for (const auto& [key, value] : checkpoint->metadata()) {
      (((text += separator) += json_string(key)) += ':') += json_string(value);
      separator = ",";
    }
    text += '}';
  }
};

}  // namespace

std::optional<Content> safetensors_file(const Checkpoint& checkpoint,
                                        std::vector<std::uint32_t> tensors) {
  std::ranges::stable_sort(tensors, std::ranges::greater{}, [&](std::uint32_t number) {
    return dtype_bits(checkpoint.tensor(number).dtype);
  });
  auto rows = std::make_shared<Rows>(Rows{&checkpoint, std::move(tensors), {0}});
  for (const std::uint32_t number : rows->tensors) {
    rows->begins.push_back(rows->begins.back() + checkpoint.tensor(number).length);
  }
  // A std::function must be copyable, so the rows are shared by its copies.
  auto table = std::make_unique<Table>(
      rows->tensors.size() + 2,
      [rows](std::uint64_t row, std::string& text) { rows->append(row, text); });

  const std::uint64_t unpadded = kLengthBytes + table->size();
  const std::uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  const std::uint64_t length = table->size() + padding;
  if (length > kMaxJsonLength) return std::nullopt;
  std::string prefix;
  for (unsigned i = 0; i < kLengthBytes; ++i) prefix += static_cast<char>(length >> (8 * i) & 0xFF);

  Content content;
  content.literal(std::move(prefix));
  content.production(std::move(table));
  content.literal(std::string(static_cast<std::size_t>(padding), ' '));
  for (const std::uint32_t number : rows->tensors) {
    const Tensor tensor = checkpoint.tensor(number);
    content.extent(tensor.source->file, tensor.offset, tensor.length);
  }
  return content;
}

}  // namespace stfs
