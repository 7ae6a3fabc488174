#include "core/format/safetensors.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sort.h"
#include "core/base/text.h"

#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>

namespace stfs {
namespace {

constexpr std::uint64_t kLengthBytes = 8;  // the u64 that begins a file
constexpr std::size_t kMaxDepth = 127;     // nesting that serde_json accepts
constexpr std::string_view kMetadataField = "__metadata__";

// Calls madvise(2) with MADV_HUGEPAGE, which saves page faults in memory that is about to be
// filled. It is only a hint, so its errors do not matter.
void use_huge_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kHugePage = 2 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  if (begin >= end) return;
  ::madvise(static_cast<std::byte*>(data) + (begin - address), end - begin, MADV_HUGEPAGE);
}

// The text of a header, read in pieces to save memory.
class Text {
 public:
  Text() = default;
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  virtual ~Text() = default;

  // Returns the next piece, which is valid until the next call. Returns "" at the end, and from the
  // piece with the first NUL on, because JSON cannot contain a NUL, but nlohmann/json would accept
  // it as the end of its input.
  std::string_view next() {
    if (has_nul_) return {};
    const std::string_view piece = read();
    has_nul_ = piece.find('\0') != std::string_view::npos;
    return has_nul_ ? std::string_view{} : piece;
  }
  bool has_nul() const { return has_nul_; }

  virtual std::string whole() const = 0;

 private:
  virtual std::string_view read() = 0;

  bool has_nul_ = false;
};

class TextInMemory : public Text {
 public:
  explicit TextInMemory(std::string_view text) : text_(text) {}
  std::string whole() const override { return std::string(text_); }

 private:
  std::string_view read() override { return std::exchange(left_, {}); }

  std::string_view text_;
  std::string_view left_ = text_;
};

class TextInSource : public Text {
 public:
  TextInSource(const Source& source, std::uint64_t offset, std::uint64_t length,
               const std::string& place)
      : source_(source),
        begin_(offset),
        end_(offset + length),
        at_(offset),
        place_(place),
        buffer_(std::min(kPiece, length), '\0') {}

  std::string whole() const override {
    std::string text(end_ - begin_, '\0');
    read_at(begin_, text);
    return text;
  }

 private:
  static constexpr std::uint64_t kPiece = 256 << 10;  // bytes, small enough for the L2 cache

  std::string_view read() override {
    const std::span<char> piece(buffer_.data(), std::min(kPiece, end_ - at_));
    read_at(at_, piece);
    at_ += piece.size();
    return {piece.data(), piece.size()};
  }
  void read_at(std::uint64_t offset, std::span<char> out) const {
    if (const int error = source_.read(std::as_writable_bytes(out), offset)) {
      throw_read_failure(source_, place_, "header", error);
    }
  }

  const Source& source_;
  std::uint64_t begin_, end_, at_;
  const std::string& place_;
  std::string buffer_;
};

// An input iterator over the bytes of a Text, for nlohmann/json. The end iterator has no text.
class TextIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TextIterator() = default;
  TextIterator(Text& text, std::string_view piece) : text_(&text) { take(piece); }

  reference operator*() const { return *at_; }
  TextIterator& operator++() {
    ++at_;
    return *this;
  }
  bool operator!=(const TextIterator&) { return at_ != end_ || refill(); }

 private:
  void take(std::string_view piece) {
    at_ = piece.data();
    end_ = piece.data() + piece.size();
  }
  // Not inlined, because the parser compares iterators before each byte and seldom needs this.
  [[gnu::noinline]] bool refill() {
    take(text_->next());
    return at_ != end_;
  }

  Text* text_ = nullptr;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
};

// Builds a Header directly from the SAX events of nlohmann/json. Accepts the JSON forms that serde
// derives for the structures of the reference reader: a tensor is an object, or an array of its
// fields in order; a dtype is its name or {name: null}; unknown fields are ignored.
class HeaderReader {
 public:
  // `json_length` is the size of the JSON in bytes. Reserves memory for the longest possible names
  // and for an estimated number of tensors. Memory that is never touched stays virtual.
  HeaderReader(std::string place, std::size_t json_length) : place_(std::move(place)) {
    constexpr std::size_t kBytesPerTensor = 80;  // bytes of JSON for a tensor with a short name
    header_.names.reserve(json_length);
    header_.tensors.reserve(json_length / kBytesPerTensor);
    header_.dims.reserve(json_length / kBytesPerTensor);
    use_huge_pages(header_.names.data(), header_.names.capacity());
    use_huge_pages(header_.tensors.data(), header_.tensors.capacity() * sizeof(TensorRecord));
  }

  Header take() { return std::move(header_); }
  const std::optional<Error>& error() const { return error_; }

  // The members of nlohmann::json_sax. Each sets error_ and returns false to stop the parser.
  bool null() {
    switch (expect_) {
      case Expect::kMetadata: return metadata_done();
      case Expect::kDTypeNull: expect_ = Expect::kDTypeEnd; return true;
      default: return scalar("null");
    }
  }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(std::int64_t) { return scalar("a negative number"); }
  bool number_float(double, const std::string&) {
    return scalar("a number that is not a 64-bit integer");
  }
  bool number_unsigned(std::uint64_t value) {
    switch (expect_) {
      case Expect::kShapeItem:
        if (rank_ == std::numeric_limits<std::uint32_t>::max()) return refuse("shape is too long");
        header_.dims.push_back(value);
        ++rank_;
        return true;
      case Expect::kOffsetItem:
        if (offset_count_ == 2) return refuse("data_offsets holds more than two numbers");
        offsets_[offset_count_++] = value;
        return true;
      default: return scalar("a number");
    }
  }
  bool string(std::string& value) {
    switch (expect_) {
      case Expect::kDType: return dtype(value) && field_done();
      case Expect::kMetadataValue:
        header_.metadata.add(metadata_key_, value);
        expect_ = Expect::kMetadataKey;
        return true;
      default: return scalar("a string");
    }
  }
  bool binary(nlohmann::json::binary_t&) { return refuse("unexpected binary value"); }

  bool start_object(std::size_t) {
    if (!enter()) return false;
    switch (expect_) {
      case Expect::kTop: expect_ = Expect::kTopKey; return true;
      case Expect::kMetadata: expect_ = Expect::kMetadataKey; return true;
      case Expect::kTensor:
        as_array_ = false;
        expect_ = Expect::kField;
        return true;
      case Expect::kDType: expect_ = Expect::kDTypeName; return true;
      case Expect::kIgnored: ignored_.emplace_back(); return true;
      default: return refuse("unexpected object");
    }
  }
  bool start_array(std::size_t) {
    if (!enter()) return false;
    switch (expect_) {
      case Expect::kTensor: as_array_ = true; return next_element();
      case Expect::kShape: expect_ = Expect::kShapeItem; return true;
      case Expect::kOffsets: expect_ = Expect::kOffsetItem; return true;
      case Expect::kIgnored: ignored_.emplace_back(); return true;
      default: return refuse("unexpected array");
    }
  }

  bool key(std::string& value) {
    switch (expect_) {
      case Expect::kTopKey: return top_key(value);
      case Expect::kField: return field(value);
      case Expect::kMetadataKey:
        metadata_key_ = std::move(value);
        expect_ = Expect::kMetadataValue;
        return true;
      case Expect::kDTypeName: expect_ = Expect::kDTypeNull; return dtype(value);
      case Expect::kIgnored:
        if (!ignored_.back().insert(value).second) return duplicate_key(value);
        return true;
      default: return refuse("unexpected key " + in_quotes(value));
    }
  }

  bool end_object() {
    --depth_;
    switch (expect_) {
      case Expect::kTopKey: return true;
      case Expect::kMetadataKey: return metadata_done();
      case Expect::kField: return tensor_done();
      case Expect::kDTypeEnd: return field_done();
      case Expect::kIgnored: return ignored_done();
      default: return refuse("unexpected end of an object");
    }
  }
  bool end_array() {
    --depth_;
    switch (expect_) {
      case Expect::kShapeItem: return field_done();
      case Expect::kOffsetItem:
        if (offset_count_ != 2) return refuse("data_offsets does not hold two numbers");
        return field_done();
      case Expect::kElementsEnd: return tensor_done();
      case Expect::kIgnored: return ignored_done();
      default: return refuse("unexpected end of an array");
    }
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail("header", "not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Expect {
    kTop,
    kTopKey,
    kMetadata,
    kMetadataKey,
    kMetadataValue,
    kTensor,
    kField,        // a key of a tensor's object, or its end
    kElementsEnd,  // the end of a tensor's array
    kDType,
    kDTypeName,  // the key of {"U8": null}
    kDTypeNull,
    kDTypeEnd,
    kShape,
    kShapeItem,
    kOffsets,
    kOffsetItem,
    kIgnored,  // the value of an unknown field, or something inside this value
  };
  enum Field : unsigned { kHasDType = 1, kHasShape = 2, kHasOffsets = 4, kHasAll = 7 };

  bool fail(const std::string& subject, const std::string& rule) {
    error_.emplace(ErrorCode::kInvalidHeaderDeserialization, place_, subject + ": " + rule);
    return false;
  }
  bool refuse(const std::string& rule) {
    if (in_tensor_) return fail("tensor " + in_quotes(header_.name(tensor_)), rule);
    return fail(in_metadata_ ? "__metadata__" : "header", rule);
  }
  bool duplicate_key(const std::string& key) { return refuse("duplicate key " + in_quotes(key)); }

  // Accepts a scalar that only an unknown field may have.
  bool scalar(const char* kind) {
    if (expect_ != Expect::kIgnored) return refuse(std::string(kind) + " where " + expected());
    if (ignored_.empty()) expect_ = Expect::kField;
    return true;
  }
  std::string expected() const {
    switch (expect_) {
      case Expect::kTop: return "an object is expected";
      case Expect::kMetadata: return "__metadata__ must be null or an object";
      case Expect::kMetadataValue: return "a value of __metadata__ must be a string";
      case Expect::kTensor: return "a tensor is expected";
      case Expect::kDType:
      case Expect::kDTypeNull: return "a dtype is expected";
      case Expect::kShape:
      case Expect::kShapeItem: return "shape must be an array of unsigned integers";
      case Expect::kOffsets:
      case Expect::kOffsetItem: return "data_offsets must be two unsigned integers";
      default: return "no value is expected";
    }
  }

  bool enter() {
    if (++depth_ > kMaxDepth) return refuse("nested deeper than 127");
    return true;
  }

  bool top_key(const std::string& key) {
    if (key == kMetadataField) {
      if (has_metadata_) return duplicate_key(key);
      has_metadata_ = true;
      in_metadata_ = true;
      expect_ = Expect::kMetadata;
      return true;
    }
    if (header_.tensors.size() == std::numeric_limits<std::uint32_t>::max()) {
      return refuse("too many tensors");
    }
    tensor_ = TensorRecord{};
    tensor_.name_begin = header_.names.size();
    tensor_.name_length = static_cast<std::uint32_t>(key.size());
    tensor_.shape_begin = header_.dims.size();
    header_.names += key;
    fields_ = 0;
    rank_ = 0;
    offset_count_ = 0;
    in_tensor_ = true;
    expect_ = Expect::kTensor;
    return true;
  }

  bool field(const std::string& key) {
    if (key == "dtype") return begin_field(kHasDType, Expect::kDType, key);
    if (key == "shape") return begin_field(kHasShape, Expect::kShape, key);
    if (key == "data_offsets") return begin_field(kHasOffsets, Expect::kOffsets, key);
    if (!unknown_.insert(key).second) return duplicate_key(key);
    expect_ = Expect::kIgnored;
    return true;
  }
  bool begin_field(Field bit, Expect next, const std::string& key) {
    if ((fields_ & bit) != 0) return duplicate_key(key);
    fields_ |= bit;
    expect_ = next;
    return true;
  }
  // For a tensor that is an array: expects its next field, in the order dtype, shape, data_offsets.
  bool next_element() {
    switch (fields_) {
      case 0:
        fields_ = kHasDType;
        expect_ = Expect::kDType;
        return true;
      case kHasDType:
        fields_ |= kHasShape;
        expect_ = Expect::kShape;
        return true;
      case kHasDType | kHasShape:
        fields_ |= kHasOffsets;
        expect_ = Expect::kOffsets;
        return true;
      default: expect_ = Expect::kElementsEnd; return true;
    }
  }
  bool field_done() {
    if (as_array_) return next_element();
    expect_ = Expect::kField;
    return true;
  }
  bool dtype(const std::string& name) {
    const std::optional<DType> type = dtype_from_name(name);
    if (!type || type_info(*type).kind == TypeKind::kQuantized) {
      return refuse("unknown dtype " + in_quotes(name) + ": a newer stfs may support it");
    }
    tensor_.dtype = *type;
    return true;
  }
  bool ignored_done() {
    ignored_.pop_back();
    if (ignored_.empty()) expect_ = Expect::kField;
    return true;
  }
  bool metadata_done() {
    header_.metadata.sort();
    for (std::size_t i = 1; i < header_.metadata.size(); ++i) {
      const std::string_view key = header_.metadata[i].first;
      if (key == header_.metadata[i - 1].first) return duplicate_key(std::string(key));
    }
    in_metadata_ = false;
    expect_ = Expect::kTopKey;
    return true;
  }
  bool tensor_done() {
    if (fields_ != kHasAll) {
      const char* missing = (fields_ & kHasDType) == 0   ? "dtype"
                            : (fields_ & kHasShape) == 0 ? "shape"
                                                         : "data_offsets";
      return refuse("field " + std::string(missing) + " is missing");
    }
    tensor_.rank = rank_;
    // The begin and end of data_offsets; validate() turns them into an offset and a length.
    tensor_.offset = offsets_[0];
    tensor_.length = offsets_[1];
    header_.tensors.push_back(tensor_);
    unknown_.clear();
    in_tensor_ = false;
    expect_ = Expect::kTopKey;
    return true;
  }

  std::string place_;
  Header header_;
  std::optional<Error> error_;
  Expect expect_ = Expect::kTop;
  std::size_t depth_ = 0;
  bool has_metadata_ = false;
  bool in_metadata_ = false;
  std::string metadata_key_;
  // The tensor being read.
  TensorRecord tensor_;
  bool in_tensor_ = false;
  bool as_array_ = false;
  unsigned fields_ = 0;
  std::uint32_t rank_ = 0;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;
  std::set<std::string, std::less<>> unknown_;  // the names of its unknown fields
  // The keys of each open object or array inside an unknown field, the outermost first.
  std::vector<std::set<std::string, std::less<>>> ignored_;
};

std::string in_bytes(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

std::string subject(std::string_view name) { return "tensor " + in_quotes(name) + ": "; }

// Fills header.by_name. Throws Error kDuplicateTensor.
void sort_by_name(Header& header, const std::string& place) {
  const auto name_of = [&header](std::uint32_t i) { return header.name(header.tensors[i]); };
  auto [order, any_equal] = sorted_order(header.tensors.size(), name_of);
  header.by_name = std::move(order);
  for (std::size_t i = 1; any_equal && i < header.by_name.size(); ++i) {
    const std::string_view name = name_of(header.by_name[i]);
    if (name == name_of(header.by_name[i - 1])) {
      throw Error(ErrorCode::kDuplicateTensor, place, subject(name) + "the name occurs twice");
    }
  }
}

// Checks the tensors in the order of their bytes, like Metadata::validate of the reference reader.
// Converts each record's `offset` and `length`, which the parser has set to the begin and the end
// in the data, to the offset in the file and the length.
void validate(Header& header, std::uint64_t data_length, const std::string& place) {
  const std::uint64_t data_begin = header.raw.offset + header.raw.length;
  std::uint64_t expected = 0;
  std::string_view previous;
  for (TensorRecord& tensor : header.tensors) {
    const std::uint64_t begin = tensor.offset;
    const std::uint64_t end = tensor.length;
    const auto fail = [&](ErrorCode code, const std::string& rule) {
      throw Error(code, place, subject(header.name(tensor)) + rule);
    };
    const auto range = [&] {
      return "data_offsets [" + std::to_string(begin) + "," + std::to_string(end) + "]";
    };
    if (begin != expected) {
      const std::string neighbour = &tensor == header.tensors.data()
                                        ? "the start of the data"
                                        : "tensor " + in_quotes(previous);
      fail(ErrorCode::kInvalidOffset,
           range() + (begin < expected ? " overlap " : " leave a gap after ") + neighbour);
    }
    if (end < begin) fail(ErrorCode::kInvalidOffset, range() + " end before they begin");
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : header.shape(tensor)) {
      if (__builtin_mul_overflow(elements, dim, &elements)) {
        fail(ErrorCode::kValidationOverflow, "the product of the shape overflows 64 bits");
      }
    }
    const TypeInfo& info = type_info(tensor.dtype);
    std::uint64_t bits = 0;
    if (__builtin_mul_overflow(elements, std::uint64_t{info.bits()}, &bits)) {
      fail(ErrorCode::kValidationOverflow, "the size in bits overflows 64 bits");
    }
    const std::optional<std::uint64_t> bytes = info.bytes_of(elements);
    if (!bytes) {
      fail(ErrorCode::kMisalignedSlice,
           std::to_string(bits) + " bits do not end at a byte's boundary");
    }
    if (end - begin != *bytes) {
      fail(ErrorCode::kTensorInvalidInfo, range() + " hold " + std::to_string(end - begin) +
                                              " bytes, dtype and shape need " +
                                              std::to_string(*bytes));
    }
    tensor.offset = begin;
    tensor.length = end - begin;
    expected = end;
    previous = header.name(tensor);
  }
  if (expected < data_length) {
    throw Error(ErrorCode::kMetadataIncompleteBuffer, place,
                "the file has " + in_bytes(data_length - expected) + " after the last tensor");
  }
  if (expected > data_length) {
    std::uint64_t needed = 0;
    const bool overflows = __builtin_add_overflow(data_begin, expected, &needed);
    throw Error(ErrorCode::kMetadataIncompleteBuffer, place,
                "the file has " + in_bytes(data_begin + data_length) + " and needs " +
                    (overflows ? "over 2^64" : std::to_string(needed)) + ": truncated");
  }
  // The sums cannot overflow, because every offset is inside the file.
  for (TensorRecord& tensor : header.tensors) tensor.offset += data_begin;
}

Header parse(Text& text, std::uint64_t json_length, std::uint64_t data_length,
             const std::string& place) {
  HeaderReader reader(place, json_length);
  // nlohmann/json skips a byte-order mark, but the reference reader refuses it.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::string_view first = text.next();
  const bool has_mark = first.starts_with(kByteOrderMark);
  const bool is_json =
      !has_mark && nlohmann::json::sax_parse(TextIterator(text, first), TextIterator(), &reader) &&
      !text.has_nul();
  if (!is_json) {
    // The reference reader checks the encoding of the whole header before it parses the JSON.
    if (!is_utf8(text.whole())) {
      throw Error(ErrorCode::kInvalidHeader, place, "header: not valid UTF-8");
    }
    if (has_mark || text.has_nul()) {
      throw Error(ErrorCode::kInvalidHeaderDeserialization, place,
                  has_mark ? "header: begins with a byte-order mark"
                           : "header: holds a NUL byte, as an unfinished download does");
    }
    throw Error(*reader.error());
  }
  Header header = reader.take();
  header.raw = {kLengthBytes, json_length};
  const auto by_offsets = [](const TensorRecord& a, const TensorRecord& b) {
    return std::pair(a.offset, a.length) < std::pair(b.offset, b.length);
  };
  if (!std::ranges::is_sorted(header.tensors, by_offsets)) {
    std::ranges::stable_sort(header.tensors, by_offsets);
  }
  sort_by_name(header, place);
  validate(header, data_length, place);
  return header;
}

}  // namespace

Header parse_safetensors(std::string_view json, std::uint64_t data_length,
                         const std::string& place) {
  TextInMemory text(json);
  return parse(text, json.size(), data_length, place);
}

std::uint64_t safetensors_header_length(std::span<const std::byte> first) {
  std::uint64_t length = 0;
  for (std::size_t i = std::min(first.size(), kLengthBytes); i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(first[i]);
  }
  return kLengthBytes + std::min<std::uint64_t>(length, kMaxJsonLength);
}

Header read_safetensors(const Source& source, const std::string& place) {
  if (source.size() < kLengthBytes) {
    throw Error(ErrorCode::kHeaderTooSmall, place,
                "header: the file has " + in_bytes(source.size()) + ", fewer than 8");
  }
  std::array<std::uint8_t, kLengthBytes> prefix{};
  if (const int error = source.read(std::as_writable_bytes(std::span(prefix)), 0)) {
    throw_read_failure(source, place, "header", error);
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | prefix[i];
  if (length > kMaxJsonLength) {
    throw Error(ErrorCode::kHeaderTooLarge, place,
                "header: length " + std::to_string(length) + " is over 100000000");
  }
  if (length > source.size() - kLengthBytes) {
    throw Error(ErrorCode::kInvalidHeaderLength, place,
                "header: the file has " + in_bytes(source.size()) + " and needs at least " +
                    std::to_string(kLengthBytes + length));
  }
  source.prefetch({0, kLengthBytes + length});
  TextInSource text(source, kLengthBytes, length, place);
  return parse(text, length, source.size() - kLengthBytes - length, place);
}

}  // namespace stfs
