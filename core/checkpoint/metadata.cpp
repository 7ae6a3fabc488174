#include "core/checkpoint/metadata.h"

#include "core/format/gguf.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kLength = sizeof(std::uint64_t);  // bytes of the length before a string

// Produces the text of an array. It owns the ArrayText, or borrows it from the checkpoint.
class ArrayProducer : public Producer {
 public:
  explicit ArrayProducer(const ArrayText& text) : text_(text) {}
  explicit ArrayProducer(std::unique_ptr<const ArrayText> owned)
      : owned_(std::move(owned)), text_(*owned_) {}

  std::uint64_t size() const override { return text_.size(); }
  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    return text_.produce(offset, out);
  }
  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    text_.missing(offset, length, missing);
  }
  int verify() const override { return text_.verify(); }

 private:
  std::unique_ptr<const ArrayText> owned_;
  const ArrayText& text_;
};

// Returns false for NaN and infinity, which JSON does not have.
bool is_finite(const MetadataItem& item) {
  const bool is_float = item.value.type == ValueType::kF32 || item.value.type == ValueType::kF64;
  return !is_float || item.text.find('n') == std::string_view::npos;
}

}  // namespace

std::uint64_t ArrayText::begin() const {
  return value_.encoded.offset + sizeof(std::uint32_t) + sizeof(std::uint64_t);
}

// Writes the first element of `bytes` and removes it from them. Returns false if they do not
// contain the whole element.
bool ArrayText::write_element(std::string_view& bytes, Step& step, TextWriter& out) const {
  std::uint64_t size = gguf_value_size(value_.element);
  if (size == 0) {
    if (bytes.size() < kLength) return false;
    std::memcpy(&size, bytes.data(), kLength);
    if (size > bytes.size() - kLength) return false;
    size += kLength;
  }
  if (bytes.size() < size) return false;
  if (step.at > begin()) out.add(",");
  if (value_.element == ValueType::kString) {
    out.json(bytes.substr(kLength, size - kLength));
  } else {
    write_gguf_number(value_.element, std::as_bytes(std::span(bytes.substr(0, size))), out);
  }
  bytes.remove_prefix(size);
  step.at += size;
  return true;
}

// Begins a string that continues in later steps. Returns false if the bytes do not begin a string
// that fits into the array.
bool ArrayText::begin_string(std::string_view& bytes, Step& step, TextWriter& out) const {
  if (value_.element != ValueType::kString || bytes.size() < kLength) return false;
  std::memcpy(&step.left, bytes.data(), kLength);
  if (step.left > end() - step.at - kLength) return false;
  out.add(step.at > begin() ? ",\"" : "\"");
  bytes.remove_prefix(kLength);
  step.at += kLength;
  return true;
}

// Writes the text of a step, and sets `step` to the next one. Returns 0 or an errno. EIO means that
// the bytes are not such an array. The source may then have changed, which verify() reports.
int ArrayText::write(Step& step, Read read, TextWriter& out) const {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kStep, end() - step.at)));
  if (const int error = buffer.empty() ? 0 : (source_.*read)(buffer, step.at)) return error;
  std::string_view bytes(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  const std::uint64_t before = out.size();
  if (step.at == begin()) out.add("[");
  if (step.left == 0) {
    bool has_element = bytes.empty();
    while (write_element(bytes, step, out)) has_element = true;
    if (!has_element && !begin_string(bytes, step, out)) return EIO;
  }
  if (step.left > 0) {
    std::string_view part = bytes.substr(0, step.left);
    if (part.size() < step.left) part = part.substr(0, utf8_floor(part, part.size() - 1));
    out.json_inside(part);
    step.at += part.size();
    step.left -= part.size();
    if (step.left == 0) out.add("\"");
  }
  if (step.at == end()) out.add("]");
  step.text += out.size() - before;
  return 0;
}

int ArrayText::prepare() const {
  const std::lock_guard lock(mutex_);
  if (is_prepared_) return 0;
  steps_.clear();
  Step step{begin(), 0, 0};
  do {
    steps_.push_back(step);
    TextWriter counted;
    if (const int error = write(step, &Source::read, counted)) return error;
  } while (step.at < end());
  size_ = step.text;
  is_prepared_ = true;
  return 0;
}

std::vector<ArrayText::Step>::const_iterator ArrayText::step_at(std::uint64_t offset) const {
  return std::prev(std::ranges::upper_bound(steps_, offset, {}, &Step::text));
}

int ArrayText::produce(std::uint64_t offset, std::span<std::byte> out) const {
  std::string text;
  for (auto at = step_at(offset); !out.empty(); ++at) {
    const auto next = std::next(at);
    const std::uint64_t length = (next == steps_.end() ? size_ : next->text) - at->text;
    text.clear();
    TextWriter writer(text);
    Step step = *at;
    if (const int error = write(step, &Source::read_unverified, writer)) {
      const int changed = error == EIO ? verify() : 0;
      return changed != 0 ? changed : error;
    }
    if (text.size() != length) {
      const int changed = verify();
      return changed != 0 ? changed : EIO;
    }
    const std::string_view rest = std::string_view(text).substr(offset - at->text, out.size());
    std::memcpy(out.data(), rest.data(), rest.size());
    out = out.subspan(rest.size());
    offset += rest.size();
  }
  return 0;
}

void ArrayText::missing(std::uint64_t offset, std::uint64_t length,
                        std::vector<Extent>& missing) const {
  const std::uint64_t first = step_at(offset)->at;
  const std::uint64_t last = step_at(offset + length - 1)->at;
  const ByteRange range{first, std::min(last + kStep, end()) - first};
  if (range.length > 0 && !source_.has(range)) {
    missing.push_back({&source_, range.offset, range.length});
  }
}

int text_size(const MetadataItem& item, std::uint64_t& bytes) {
  if (item.value.has_text) {
    bytes = item.text.size();
    return 0;
  }
  if (item.value.type == ValueType::kString) {
    bytes = item.value.encoded.length - kLength;
    return 0;
  }
  const ArrayText own(*item.source, item.value);
  const ArrayText& array = item.array != nullptr ? *item.array : own;
  if (const int error = array.prepare()) return error;
  bytes = array.size();
  return 0;
}

int make_text(const MetadataItem& item, Content& content) {
  if (item.value.has_text) {
    content.borrowed(item.text);
    return 0;
  }
  if (item.value.type == ValueType::kString) {
    content.extent(*item.source, item.value.encoded.offset + kLength,
                   item.value.encoded.length - kLength);
    return 0;
  }
  if (item.array != nullptr) {
    if (const int error = item.array->prepare()) return error;
    content.production(std::make_unique<ArrayProducer>(*item.array));
    return 0;
  }
  auto own = std::make_unique<const ArrayText>(*item.source, item.value);
  if (const int error = own->prepare()) return error;
  content.production(std::make_unique<ArrayProducer>(std::move(own)));
  return 0;
}

void write_value_json(const MetadataItem& item, TextWriter& out) {
  const MetadataValue& value = item.value;
  if (value.type == ValueType::kArray) {
    out.add("{\"array\": \"").add(value_type_name(value.element)).add("\", \"length\": ");
    out.number(value.count).add("}");
  } else if (!value.has_text) {
    out.add("{\"string\": ").number(value.encoded.length - kLength).add("}");
  } else if (value.type == ValueType::kString) {
    out.json(item.text);
  } else {
    out.add(is_finite(item) ? item.text : "null");
  }
}

std::string shown_value(const MetadataItem& item) {
  const MetadataValue& value = item.value;
  if (value.type == ValueType::kArray) {
    return "[" + std::to_string(value.count) + " " + std::string(value_type_name(value.element)) +
           "]";
  }
  if (value.has_text) return std::string(item.text);
  return "[" + human_bytes(value.encoded.length - kLength) + "]";
}

bool are_equal(const MetadataItem& a, const MetadataItem& b) {
  const auto& x = a.value;
  const auto& y = b.value;
  if (x.type != y.type || (x.type == ValueType::kArray && x.element != y.element)) return false;
  if (x.has_text && y.has_text) return a.text == b.text;
  if (x.count != y.count || x.encoded.length != y.encoded.length) return false;
  std::vector<std::byte> in_a(
      static_cast<std::size_t>(std::min(ArrayText::kStep, x.encoded.length)));
  std::vector<std::byte> in_b(in_a.size());
  const auto read = [](const MetadataItem& item, std::span<std::byte> bytes, std::uint64_t at) {
    if (const int error = item.source->read(bytes, item.value.encoded.offset + at)) {
      throw_read_failure(*item.source, item.source->path(), "key " + in_quotes(item.key), error);
    }
  };
  for (std::uint64_t at = 0; at < x.encoded.length; at += in_a.size()) {
    const auto length =
        static_cast<std::size_t>(std::min<std::uint64_t>(in_a.size(), x.encoded.length - at));
    read(a, std::span(in_a).first(length), at);
    read(b, std::span(in_b).first(length), at);
    if (std::memcmp(in_a.data(), in_b.data(), length) != 0) return false;
  }
  return true;
}

}  // namespace stfs
