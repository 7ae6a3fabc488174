#include "core/write/gguf_writer.h"

#include "core/base/text.h"
#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/layer/quantised/schemes.h"
#include "core/recipe/table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kFirstBytesOfFile = 24;  // magic, version, the numbers of tensors and keys
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::size_t kMostName = 63;  // bytes: GGML_MAX_NAME without the NUL
constexpr std::size_t kMaxDims = 4;    // GGML_MAX_DIMS

template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Rounds up to a multiple of a power of two. Returns false if the result would exceed kMaxOffset.
bool pad(std::uint64_t& offset, std::uint64_t alignment) {
  if (offset > kMaxOffset - (alignment - 1)) return false;
  offset = (offset + alignment - 1) & ~(alignment - 1);
  return true;
}

class Zeros : public Producer {
 public:
  explicit Zeros(std::uint64_t size) : size_(size) {}
  std::uint64_t size() const override { return size_; }
  int produce(std::uint64_t, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    return 0;
  }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}

 private:
  std::uint64_t size_;
};

void add_zeros(std::uint64_t count, Content& content) {
  static constexpr std::array<char, 4096> kZeros{};
  if (count <= kZeros.size()) {
    content.borrowed({kZeros.data(), static_cast<std::size_t>(count)});
  } else {
    content.production(std::make_unique<Zeros>(count));
  }
}

// Returns the range in the source of a key, the type of its value, and the value.
ByteRange record_of(std::string_view key, const MetadataValue& value) {
  const std::uint64_t before = sizeof(std::uint64_t) + key.size() + sizeof(std::uint32_t);
  return {value.encoded.offset - before, before + value.encoded.length};
}

std::uint64_t number_in(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Returns true if a tensor has the name and the shape that its GGUF file gives it.
bool is_of_gguf(const Checkpoint& checkpoint, std::uint32_t number, const Tensor& tensor) {
  const Part& part = checkpoint.part_of(number);
  const TensorRecord& record = checkpoint.list().record(number);
  return is_gguf_part(part) && tensor.name == part.header.name(record) &&
         std::ranges::equal(tensor.shape, part.header.shape(record));
}

// Returns the shape that a GGUF file stores for a tensor. A key with the tensor's name may give the
// tensor another shape.
std::span<const std::uint64_t> stored_shape(const Checkpoint& checkpoint, std::uint32_t number,
                                            const Tensor& tensor) {
  if (!is_of_gguf(checkpoint, number, tensor)) return tensor.shape;
  return checkpoint.part_of(number).header.stored_shape(checkpoint.list().record(number));
}

bool is_hidden(const Part& part, std::string_view key) {
  return std::ranges::binary_search(part.hidden_keys, key, std::less<>());
}

void write_info(const Checkpoint& checkpoint, std::uint32_t number, std::uint64_t offset,
                TextWriter& out) {
  const Tensor tensor = checkpoint.tensor(number);
  const std::span shape = stored_shape(checkpoint, number, tensor);
  out.add(bytes_of(std::uint64_t{tensor.name.size()})).add(tensor.name);
  out.add(bytes_of(static_cast<std::uint32_t>(shape.size())));
  for (std::size_t i = shape.size(); i-- > 0;) out.add(bytes_of(shape[i]));
  out.add(bytes_of(std::uint32_t{type_info(tensor.dtype).gguf}));
  out.add(bytes_of(offset));
}

template <class T>
void write_number(std::string_view text, std::string& out) {
  T number{};
  std::from_chars(text.data(), text.data() + text.size(), number);
  out += bytes_of(number);
}

// Appends the encoding of a key that an edit has set.
void write_key(std::string_view key, std::string_view text, ValueType type, std::string& out) {
  out.append(bytes_of(std::uint64_t{key.size()})).append(key);
  out += bytes_of(static_cast<std::uint32_t>(type));
  switch (type) {
    case ValueType::kString: out.append(bytes_of(std::uint64_t{text.size()})).append(text); break;
    case ValueType::kBool: out += text == "true" ? '\1' : '\0'; break;
    case ValueType::kU8: write_number<std::uint8_t>(text, out); break;
    case ValueType::kI8: write_number<std::int8_t>(text, out); break;
    case ValueType::kU16: write_number<std::uint16_t>(text, out); break;
    case ValueType::kI16: write_number<std::int16_t>(text, out); break;
    case ValueType::kU32: write_number<std::uint32_t>(text, out); break;
    case ValueType::kI32: write_number<std::int32_t>(text, out); break;
    case ValueType::kU64: write_number<std::uint64_t>(text, out); break;
    case ValueType::kI64: write_number<std::int64_t>(text, out); break;
    case ValueType::kF32: write_number<float>(text, out); break;
    case ValueType::kF64: write_number<double>(text, out); break;
    case ValueType::kArray: break;  // edits set no arrays
  }
}

// Returns true if a key of `part` determines the shape of a tensor that is stored in `holder`.
bool gives_shape(const Part& part, const Part& holder, std::string_view key) {
  if (&part == &holder) return true;
  return part.source.get() == holder.first_part && !holder.header.metadata.find(key);
}

}  // namespace

bool is_gguf_part(const Part& part) { return part.format->name == kGgufName; }

struct GgufFiles::Layout {
  std::vector<std::uint32_t> tensors;
  // The offset of each tensor in the data, then the size of the data.
  std::vector<std::uint64_t> begins;
  std::uint64_t infos = 0;  // bytes of the table
  std::uint64_t data = 0;   // the offset of the data in the file
};

bool GgufFiles::can_hold(std::uint32_t number) const {
  const Tensor tensor = checkpoint_.tensor(number);
  const TypeInfo& type = type_info(tensor.dtype);
  if (!is_gguf_part(checkpoint_.parts().front()) || is_dequantized(number)) return false;
  const bool has_its_type = checkpoint_.list().record(number).dtype == tensor.dtype;
  if (has_its_type && is_of_gguf(checkpoint_, number, tensor)) return true;
  const std::uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  return type.gguf != TypeInfo::kNotInGguf && tensor.shape.size() <= kMaxDims &&
         row % type.block_elements == 0 && tensor.name.size() <= kMostName;
}

bool GgufFiles::is_dequantized(std::uint32_t number) const {
  const Tensor tensor = checkpoint_.tensor(number);
  if (tensor.computed == nullptr || tensor.locator) return false;
  // Edits may have changed dequantised values.
  return tensor.computed->is_dequantized() ||
         std::ranges::find(checkpoint_.layers(), kDequantizeOption, &Layer::option) !=
             checkpoint_.layers().end();
}

std::optional<std::uint32_t> GgufFiles::with_other_scale(
    std::span<const std::uint32_t> tensors) const {
  std::map<std::string_view, std::uint32_t> names;  // all names; filled when a tensor has a scale
  for (const std::uint32_t number : tensors) {
    const Tensor tensor = checkpoint_.tensor(number);
    const ComputedTensor* const values = tensor.values != nullptr ? tensor.values : tensor.computed;
    if (values == nullptr) continue;
    const std::vector<Tensor> inputs = values->inputs();  // the blocks and their scale
    const auto is_scaled = [](const Tensor& input) { return is_scaled_in_gguf(input.dtype); };
    if (std::ranges::none_of(inputs, is_scaled)) continue;
    if (names.empty()) {
      for (const std::uint32_t each : tensors) names.emplace(checkpoint_.name(each), each);
    }
    bool has_scale = false;
    const std::string name(tensor.name);
    for (const std::string& scale :
         {name.substr(0, name.rfind(".weight")) + ".scale", name + ".scale"}) {
      const auto at = names.find(scale);
      if (at == names.end()) continue;
      const Tensor beside = checkpoint_.tensor(at->second);
      const auto is_same = [&](const Tensor& input) {
        return beside.locator && input.locator && beside.dtype == input.dtype &&
               beside.locator->source == input.locator->source &&
               beside.locator->offset == input.locator->offset;
      };
      has_scale =
          tensor.values != nullptr && (inputs.size() == 1 || std::ranges::any_of(inputs, is_same));
      if (!has_scale) return number;
    }
    if (tensor.values != nullptr && !has_scale) return number;
  }
  return std::nullopt;
}

const GgufFiles::Keys& GgufFiles::keys() const {
  std::call_once(keys_found_, [this] { keys_ = find_keys(); });
  return keys_;
}

GgufFiles::Keys GgufFiles::find_keys() const {
  const Parts parts = checkpoint_.parts();
  const std::vector<std::string>& conflicts = checkpoint_.metadata_conflicts();
  Keys keys;
  std::optional<Extent> alignment;  // the record with the largest alignment
  for (const Part& part : parts) {
    const Metadata& metadata = part.header.metadata;
    const auto at = is_gguf_part(part) ? find_gguf_key(metadata, kGgufAlignmentKey) : std::nullopt;
    if (!at || is_hidden(part, metadata[*at].first) ||
        number_in(metadata[*at].second) <= keys.alignment)
      continue;
    keys.alignment = number_in(metadata[*at].second);
    const ByteRange record = record_of(metadata[*at].first, metadata.value(*at));
    alignment = Extent{part.source.get(), record.offset, record.length};
  }
  if (!alignment) keys.alignment = kDefaultAlignment;

  const auto is_alignment = [](std::string_view key) {
    return up_to_nul(key) == kGgufAlignmentKey;
  };
  bool has_alignment = false;
  // Not a hash set, because a file could choose keys with equal hashes.
  std::set<std::string_view> seen;
  const auto is_wanted = [&](const Part& part, std::string_view key) {
    if (is_split_key(key) || is_hidden(part, key)) return false;
    if (is_alignment(key)) return !std::exchange(has_alignment, true);
    if (key.starts_with(kGgufOriginalShapeKey)) {
      const auto tensor = checkpoint_.find(key.substr(kGgufOriginalShapeKey.size()));
      if (tensor) {
        return is_of_gguf(checkpoint_, *tensor, checkpoint_.tensor(*tensor)) &&
               gives_shape(part, checkpoint_.part_of(*tensor), key);
      }
    }
    if (parts.size() > 1 && !seen.insert(key).second) return false;  // an earlier part has it
    return !std::ranges::binary_search(conflicts, key);
  };
  for (const Part& part : parts) {
    if (!is_gguf_part(part)) continue;
    const Metadata& metadata = part.header.metadata;
    std::vector<std::uint32_t> order(metadata.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::sort(order, {}, [&](std::uint32_t i) { return metadata.value(i).encoded.offset; });
    for (const std::uint32_t i : order) {
      const std::string_view key = metadata[i].first;
      if (!is_wanted(part, key)) continue;
      if (metadata.value(i).encoded.length == 0) {
        write_key(key, metadata[i].second, metadata.value(i).type, keys.added);
        ++keys.count;
        continue;
      }
      const ByteRange range = record_of(key, metadata.value(i));
      const Extent record =
          is_alignment(key) ? *alignment : Extent{part.source.get(), range.offset, range.length};
      ++keys.count;
      keys.bytes += record.length;
      if (!keys.records.empty() && keys.records.back().source == record.source &&
          keys.records.back().offset + keys.records.back().length == record.offset) {
        keys.records.back().length += record.length;
      } else {
        keys.records.push_back(record);
      }
    }
  }
  keys.bytes += keys.added.size();
  return keys;
}

int GgufFiles::lay_out(std::span<const std::uint32_t> tensors, Layout& layout) const {
  if (with_other_scale(tensors)) return ENOTSUP;
  const std::uint64_t alignment = keys().alignment;
  layout.begins.reserve(tensors.size() + 1);
  layout.begins.push_back(0);
  TextWriter counted;
  for (const std::uint32_t number : tensors) {
    if (!can_hold(number)) return ENOTSUP;
    write_info(checkpoint_, number, 0, counted);
    const std::uint64_t length = checkpoint_.tensor(number).length;
    std::uint64_t end = layout.begins.back();
    if (length > kMaxOffset - end) return EFBIG;
    end += length;
    if (!pad(end, alignment)) return EFBIG;
    layout.begins.push_back(end);
  }
  layout.infos = counted.size();
  // This sum cannot overflow, because headers are in memory and keys are in files.
  layout.data = kFirstBytesOfFile + keys().bytes + layout.infos;
  if (!tensors.empty() && !pad(layout.data, alignment)) return EFBIG;
  return layout.begins.back() > kMaxOffset - layout.data ? EFBIG : 0;
}

int GgufFiles::size(std::span<const std::uint32_t> tensors, std::uint64_t& bytes) const {
  Layout layout;
  const int error = lay_out(tensors, layout);
  bytes = error == 0 ? layout.data + layout.begins.back() : 0;
  return error;
}

int GgufFiles::make(std::span<const std::uint32_t> tensors, Content& content) const {
  // Shared, because a std::function is copyable, and its copies must not copy the layout.
  const auto layout = std::make_shared<Layout>();
  if (const int error = lay_out(tensors, *layout)) return error;
  layout->tensors.assign(tensors.begin(), tensors.end());

  std::string first = "GGUF";
  first += bytes_of(kVersion);
  first += bytes_of(std::uint64_t{tensors.size()});
  first += bytes_of(keys().count);
  content.literal(std::move(first));
  for (const Extent& record : keys().records) {
    content.extent(*record.source, record.offset, record.length);
  }
  content.borrowed(keys().added);
  content.production(
      std::make_unique<Table>(tensors.size(), [this, layout](std::uint64_t row, TextWriter& out) {
        const auto i = static_cast<std::size_t>(row);
        write_info(checkpoint_, layout->tensors[i], layout->begins[i], out);
      }));
  add_zeros(layout->data - content.size(), content);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor tensor = checkpoint_.tensor(tensors[i]);
    content.append(tensor.content());
    add_zeros(layout->begins[i + 1] - layout->begins[i] - tensor.length, content);
  }
  return 0;
}

}  // namespace stfs
