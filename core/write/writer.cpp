#include "core/write/writer.h"

#include "core/base/text.h"
#include "core/format/safetensors.h"
#include "core/recipe/elements.h"
#include "core/recipe/table.h"
#include "core/write/header.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace stfs {
namespace {

// The maximum size of the data. A file's size is a signed number, and the header needs room too.
constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max() - 2 * kMaxJsonLength;

// Writes the JSON up to the first tensor. Returns whether it contains `__metadata__`.
bool write_metadata(const Checkpoint& checkpoint, TextWriter& out) {
  out.add("{");
  const std::string_view begin = "\"__metadata__\":{";
  std::string_view separator = begin;
  for (const auto& [key, value] : checkpoint.metadata()) {
    if (!is_utf8(key) || !is_utf8(value)) continue;  // only GGUF has such keys or values
    out.add(separator).json(key).add(":").json(value);
    separator = ",";
  }
  if (separator == begin) return false;
  out.add("}");
  return true;
}

// Returns the bytes of a tensor in a new file, or nullopt if their number of bits overflows 64
// bits, which the format does not allow.
std::optional<std::uint64_t> stored_bytes(const Tensor& tensor) {
  const DType type = type_in_safetensors(tensor);
  if (type == tensor.dtype) return tensor.length;
  return type_info(type).bytes_of(tensor.elements());
}

// The JSON of the header after the metadata: one row per tensor, and a last row that closes the
// object.
struct HeaderRows {
  HeaderRows(const Checkpoint& of, bool has_metadata, std::vector<std::uint32_t> numbers,
             bool is_in_order = false)
      : checkpoint(&of), follows_metadata(has_metadata), tensors(std::move(numbers)) {
    if (!is_in_order)
      std::ranges::stable_sort(tensors, std::ranges::greater{}, [&](std::uint32_t number) {
        return type_info(type_in_safetensors(checkpoint->tensor(number))).bits();
      });
    begins.reserve(tensors.size() + 1);
    begins.push_back(0);
    for (const std::uint32_t number : tensors) {
      const std::optional<std::uint64_t> bytes = stored_bytes(checkpoint->tensor(number));
      std::uint64_t end = 0;
      fits = fits && bytes && !__builtin_add_overflow(begins.back(), *bytes, &end) &&
             end <= kMostBytes;
      begins.push_back(end);
    }
  }

  std::uint64_t count() const { return tensors.size() + 1; }

  void write(std::uint64_t row, TextWriter& out) const {
    const auto i = static_cast<std::size_t>(row);
    if (i == tensors.size()) {
      out.add("}");
      return;
    }
    const Tensor tensor = checkpoint->tensor(tensors[i]);
    if (i > 0 || follows_metadata) out.add(",");
    write_header_row(tensor.name, type_in_safetensors(tensor), tensor.shape, begins[i],
                     begins[i + 1], out);
  }

  const Checkpoint* checkpoint;
  bool follows_metadata;
  bool fits = true;  // the data has at most kMostBytes; if false, `begins` is meaningless
  std::vector<std::uint32_t> tensors;
  // The offset of each tensor in the data, then the size of the data.
  std::vector<std::uint64_t> begins;
};

}  // namespace

DType type_in_safetensors(const Tensor& tensor) {
  return type_info(tensor.dtype).kind == TypeKind::kQuantized ? DType::kF32 : tensor.dtype;
}

bool fits_safetensors(const Tensor& tensor) {
  // Readers multiply the dimensions in their order, including the dimensions before a 0.
  std::uint64_t product = 1;
  for (const std::uint64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(product, dim, &product)) return false;
  }
  return is_utf8(tensor.name) && tensor.name != "__metadata__";
}

SafetensorsFiles::SafetensorsFiles(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  TextWriter counted;
  has_metadata_ = write_metadata(checkpoint_, counted);
  metadata_size_ = counted.size();
}

const std::string& SafetensorsFiles::metadata() const {
  std::call_once(metadata_written_, [this] {
    std::string text;
    text.reserve(static_cast<std::size_t>(metadata_size_));
    TextWriter out(text);
    write_metadata(checkpoint_, out);
    metadata_ = std::move(text);
  });
  return metadata_;
}

std::optional<std::uint64_t> SafetensorsFiles::size(std::vector<std::uint32_t> tensors) const {
  const HeaderRows rows(checkpoint_, has_metadata_, std::move(tensors));
  if (!rows.fits) return std::nullopt;
  TextWriter counted;
  for (std::uint64_t row = 0; row < rows.count(); ++row) rows.write(row, counted);
  const auto length = header_length(metadata_size_ + counted.size());
  return length ? std::optional(header_prefix(*length).size() + *length + rows.begins.back())
                : std::nullopt;
}

std::optional<Content> SafetensorsFiles::make(std::vector<std::uint32_t> tensors) const {
  return make(std::move(tensors), false, 0);
}

std::optional<Content> SafetensorsFiles::make_placed(std::vector<std::uint32_t> tensors,
                                                     std::uint64_t phase) const {
  return make(std::move(tensors), true, phase);
}

std::optional<Content> SafetensorsFiles::make(std::vector<std::uint32_t> tensors, bool is_in_order,
                                              std::uint64_t phase) const {
  // Shared, because a std::function is copyable, and its copies must not copy the rows.
  const auto rows = std::make_shared<const HeaderRows>(checkpoint_, has_metadata_,
                                                       std::move(tensors), is_in_order);
  if (!rows->fits) return std::nullopt;
  auto table = std::make_unique<Table>(
      rows->count(), [rows](std::uint64_t row, TextWriter& out) { rows->write(row, out); });
  const std::uint64_t json = metadata_size_ + table->size();
  const auto length = header_length(json, phase);
  if (!length) return std::nullopt;

  Content content;
  content.literal(header_prefix(*length));
  content.borrowed(metadata());
  content.production(std::move(table));
  content.literal(std::string(static_cast<std::size_t>(*length - json), ' '));
  for (const std::uint32_t number : rows->tensors) {
    const Tensor tensor = checkpoint_.tensor(number);
    const Tensor values = tensor.valued();
    content.append(type_in_safetensors(tensor) == tensor.dtype
                       ? tensor.content()
                       : f32_content(values.content(), values.dtype, tensor.elements()));
  }
  return content;
}

}  // namespace stfs
