#include "core/format/gguf.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sort.h"
#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kGgufFirstPiece = 256 << 10;  // bytes that the first read asks for
constexpr std::uint64_t kSmallestKey = 14;     // bytes: a key of one byte with a value of one byte
constexpr std::uint64_t kSmallestTensor = 24;  // bytes: no name, no dimensions
constexpr std::uint64_t kUsualTensor = 80;     // bytes: a name of 32 bytes, three dimensions
constexpr std::uint64_t kUsualString = 16;     // bytes: a token of a vocabulary
constexpr std::uint64_t kMaxKey = 65'535;      // bytes (docs/gguf.md)
constexpr std::uint64_t kUsualName = 63;       // bytes: GGML_MAX_NAME without the NUL
constexpr std::uint64_t kMaxName = 127;        // bytes, as stable-diffusion.cpp builds ggml
constexpr std::uint32_t kMaxRank = 4;          // GGML_MAX_DIMS
constexpr std::uint64_t kMaxLength = 1 << 30;  // the reference's limit for strings and arrays
constexpr std::uint64_t kMaxTexts = 16 << 20;  // bytes of strings that are kept in memory
constexpr std::uint64_t kMaxKeys = 4 << 20;
constexpr std::uint64_t kMaxKeyTexts = 64 << 20;  // bytes of all keys
constexpr std::uint64_t kMaxOriginalRank = 64;    // NumPy's limit

template <class T>
T little(const std::byte* at) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Returns the name of a type that ggml once had, or "" for any other number.
std::string_view removed_type(std::uint32_t number) {
  constexpr std::pair<std::uint32_t, std::string_view> kRemoved[] = {
      {4, "Q4_2"},      {5, "Q4_3"},        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
      {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}};
  const auto* const row =
      std::ranges::find(kRemoved, number, &std::pair<std::uint32_t, std::string_view>::first);
  return row == std::end(kRemoved) ? "" : row->second;
}

std::optional<ValueType> value_type(std::uint32_t number) {
  if (number > static_cast<std::uint32_t>(ValueType::kF64)) return std::nullopt;
  return static_cast<ValueType>(number);
}

// Returns the bytes of a value of this type, or 0 for strings and arrays.
std::uint64_t size_of(ValueType type) {
  constexpr std::array<std::uint8_t, 13> kSizes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

template <class T>
std::string_view decimal(T value, std::array<char, 32>& buffer) {
  const char* const end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
}

// Returns the text of a number or a bool. Sets `is_finite` to false for NaN and infinity.
std::string_view text_of(ValueType type, const std::byte* at, std::array<char, 32>& buffer,
                         bool& is_finite) {
  is_finite = true;
  switch (type) {
    case ValueType::kU8: return decimal(little<std::uint8_t>(at), buffer);
    case ValueType::kI8: return decimal(little<std::int8_t>(at), buffer);
    case ValueType::kU16: return decimal(little<std::uint16_t>(at), buffer);
    case ValueType::kI16: return decimal(little<std::int16_t>(at), buffer);
    case ValueType::kU32: return decimal(little<std::uint32_t>(at), buffer);
    case ValueType::kI32: return decimal(little<std::int32_t>(at), buffer);
    case ValueType::kU64: return decimal(little<std::uint64_t>(at), buffer);
    case ValueType::kI64: return decimal(little<std::int64_t>(at), buffer);
    case ValueType::kF32:
      is_finite = std::isfinite(little<float>(at));
      return decimal(little<float>(at), buffer);
    case ValueType::kF64:
      is_finite = std::isfinite(little<double>(at));
      return decimal(little<double>(at), buffer);
    case ValueType::kBool: return little<std::uint8_t>(at) != 0 ? "true" : "false";
    default: return {};
  }
}

// Reads a source from its beginning in growing pieces.
class Window {
 public:
  Window(const Source& source, const std::string& place) : source_(source), place_(place) {}

  std::uint64_t position() const { return begin_ + at_; }
  std::uint64_t left() const { return source_.size() - position(); }

  // Returns the next `bytes` bytes, at most left(). Valid until the next call.
  const std::byte* take(std::uint64_t bytes) {
    if (bytes > held_ - at_) refill(bytes);
    const std::byte* const taken = buffer_.data() + at_;
    at_ += static_cast<std::size_t>(bytes);
    return taken;
  }
  // Skips `bytes` bytes, at most left(). Does not read bytes that are not in the buffer.
  void skip(std::uint64_t bytes) {
    if (bytes <= held_ - at_) {
      at_ += static_cast<std::size_t>(bytes);
      return;
    }
    begin_ = position() + bytes;
    at_ = held_ = 0;
  }

  // Begins to fetch the next `bytes` bytes, because about this many will be taken. A single large
  // request is faster than many small ones.
  void expect(std::uint64_t bytes) const {
    const std::uint64_t end = position() + std::min({bytes, kMaxExpected, left()});
    const std::uint64_t read = begin_ + held_;
    if (end > read) source_.want({read, end - read}, [](int) {});
  }

 private:
  static constexpr std::uint64_t kMaxExpected = 8 << 20;
  static constexpr std::uint64_t kFirstPiece = kGgufFirstPiece;
  static constexpr std::uint64_t kLargestPiece = 4 << 20;

  void refill(std::uint64_t bytes) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(at_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(held_), buffer_.begin());
    begin_ += at_;
    held_ -= std::exchange(at_, 0);
    const std::uint64_t wanted = std::max(bytes - held_, piece_);
    const auto read = static_cast<std::size_t>(std::min(wanted, source_.size() - begin_ - held_));
    piece_ = std::min(piece_ * 2, kLargestPiece);
    buffer_.resize(std::max(buffer_.size(), held_ + read));
    // Begin to fetch the next piece while this one is read.
    const std::uint64_t next = begin_ + held_ + read;
    source_.prefetch({next, std::min(piece_, source_.size() - next)});
    if (const int error = source_.read(std::span(buffer_).subspan(held_, read), begin_ + held_)) {
      throw_read_failure(source_, place_, "header", error);
    }
    held_ += read;
  }

  const Source& source_;
  const std::string& place_;
  std::vector<std::byte> buffer_;
  std::uint64_t begin_ = 0;  // offset of the buffer in the source
  std::size_t at_ = 0;       // position in the buffer
  std::size_t held_ = 0;     // valid bytes in the buffer
  std::uint64_t piece_ = kFirstPiece;
};

class GgufReader {
 public:
  GgufReader(const Source& source, const std::string& place)
      : window_(source, place), size_(source.size()), place_(place) {}

  Header read() {
    read_counts();
    for (std::uint64_t i = 0; i < key_count_; ++i) read_key();
    sort_metadata();
    subject_ = "header";
    if (tensor_count_ > window_.left() / kSmallestTensor) {
      refuse(ErrorCode::kGgufCount, too_many(tensor_count_, "tensors"));
    }
    std::uint64_t end = 0;  // end of the last tensor with its padding, from the start of the data
    for (std::uint64_t i = 0; i < tensor_count_; ++i) end = read_tensor(end);
    place_data();
    sort_tensors();
    std::ranges::sort(header_.original_shapes, {}, &OriginalShape::name);
    apply_original_shapes(header_.original_shapes, header_);
    if (long_names_ > 0) {
      header_.warnings.push_back(
          printable(place_) + ": " + std::to_string(long_names_) +
          (long_names_ == 1 ? " tensor has a name" : " tensors have names") +
          " of 64 to 127 bytes, which stable-diffusion.cpp reads, and llama.cpp refuses");
    }
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(ErrorCode code, const std::string& rule) const {
    throw Error(code, place_, subject_ + ": " + rule);
  }
  std::string too_many(std::uint64_t count, const std::string& what) const {
    return std::to_string(count) + " " + what + " in " + std::to_string(window_.left()) + " bytes";
  }

  const std::byte* take(std::uint64_t bytes) {
    require(bytes);
    return window_.take(bytes);
  }
  void require(std::uint64_t bytes) const {
    if (bytes <= window_.left()) return;
    refuse(ErrorCode::kGgufTruncated,
           "the file ends here, with " + std::to_string(size_) + " bytes");
  }
  template <class T>
  T number() {
    return little<T>(take(sizeof(T)));
  }
  // Returns the next `length` bytes. Valid until the next call.
  std::string_view text(std::uint64_t length) {
    return {reinterpret_cast<const char*>(take(length)), static_cast<std::size_t>(length)};
  }

  void read_counts() {
    if (text(kMagic.size()) != kMagic) {
      refuse(ErrorCode::kGgufMagic, "the file does not begin with GGUF");
    }
    const auto version = number<std::uint32_t>();
    if (version != 0 && (version & 0xFFFFU) == 0) {
      refuse(ErrorCode::kGgufBigEndian, "the file is big-endian: convert it with gguf-py");
    }
    if (version != 2 && version != 3) {
      refuse(ErrorCode::kGgufVersion,
             "version " + std::to_string(version) + ": only versions 2 and 3 are supported");
    }
    const auto tensors = number<std::int64_t>();
    const auto keys = number<std::int64_t>();
    if (tensors < 0 || keys < 0) {
      refuse(ErrorCode::kGgufCount,
             tensors < 0 ? std::to_string(tensors) + " tensors" : std::to_string(keys) + " keys");
    }
    tensor_count_ = static_cast<std::uint64_t>(tensors);
    key_count_ = static_cast<std::uint64_t>(keys);
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    if (key_count_ > window_.left() / kSmallestKey) {
      refuse(ErrorCode::kGgufCount, too_many(key_count_, "keys"));
    }
    if (key_count_ > kMaxKeys) {
      refuse(ErrorCode::kGgufCount, std::to_string(key_count_) + " keys, over 4194304");
    }
    if (tensor_count_ > kMost || tensor_count_ > window_.left() / kSmallestTensor) {
      refuse(ErrorCode::kGgufCount, too_many(tensor_count_, "tensors"));
    }
    window_.expect(tensor_count_ * kUsualTensor);
  }

  // --- metadata

  void read_key() {
    subject_ = "header";
    const auto length = number<std::uint64_t>();
    if (length == 0) refuse(ErrorCode::kGgufKey, "an empty key");
    if (length > kMaxKey) {
      refuse(ErrorCode::kGgufKey, "a key of " + std::to_string(length) + " bytes, over 65535");
    }
    key_texts_ += length;
    if (key_texts_ > kMaxKeyTexts) {
      refuse(ErrorCode::kGgufCount, "the keys have more than 67108864 bytes");
    }
    key_ = text(length);
    subject_ = "key " + in_quotes(key_);
    const bool is_alignment = !has_alignment_ && up_to_nul(key_) == kGgufAlignmentKey;
    has_alignment_ = has_alignment_ || is_alignment;
    MetadataValue value;
    value.type = known_type(number<std::uint32_t>());
    value.encoded.offset = window_.position();
    std::array<char, 32> buffer{};
    std::string_view text;
    if (value.type == ValueType::kArray) {
      read_array(value);
    } else if (value.type == ValueType::kString) {
      text = read_string(value);
    } else {
      const std::byte* const at = take(size_of(value.type));
      bool is_finite = false;
      text = text_of(value.type, at, buffer, is_finite);
      if (is_alignment && value.type == ValueType::kU32) {
        set_alignment(little<std::uint32_t>(at));
      }
    }
    if (is_alignment && value.type != ValueType::kU32) {
      refuse(ErrorCode::kGgufAlignment, "must be a 32-bit unsigned integer");
    }
    value.encoded.length = window_.position() - value.encoded.offset;
    header_.metadata.add(key_, text, value);
  }

  ValueType known_type(std::uint32_t number) const {
    const std::optional<ValueType> type = value_type(number);
    if (!type) {
      refuse(ErrorCode::kGgufValue, "type " + std::to_string(number) + " of a value is unknown");
    }
    return *type;
  }

  std::uint64_t read_length(const char* what) {
    const auto length = number<std::uint64_t>();
    if (length > kMaxLength) {
      refuse(ErrorCode::kGgufCount, std::to_string(length) + what + ", over 1073741824");
    }
    return length;
  }

  std::string_view read_string(MetadataValue& value) {
    const std::uint64_t length = read_length(" bytes");
    require(length);
    if (length <= kMaxTexts - texts_) {
      texts_ += length;
      return text(length);
    }
    value.has_text = false;
    window_.skip(length);
    return {};
  }

  void read_array(MetadataValue& value) {
    value.has_text = false;
    value.element = known_type(number<std::uint32_t>());
    if (value.element == ValueType::kArray) {
      refuse(ErrorCode::kGgufValue, "an array of arrays, which ggml does not read");
    }
    value.count = read_length(" elements");
    if (value.element == ValueType::kString) {
      if (value.count > window_.left() / sizeof(std::uint64_t)) {
        refuse(ErrorCode::kGgufCount, too_many(value.count, "strings"));
      }
      window_.expect(value.count * kUsualString);
      for (std::uint64_t i = 0; i < value.count; ++i) {
        const std::uint64_t length = read_length(" bytes");
        require(length);
        window_.skip(length);
      }
      return;
    }
    const std::uint64_t bytes = value.count * size_of(value.element);  // at most 2^33
    require(bytes);
    const bool is_shape = value.element == ValueType::kI32 && value.count <= kMaxOriginalRank &&
                          std::string_view(key_).starts_with(kGgufOriginalShapeKey);
    if (!is_shape) return window_.skip(bytes);
    OriginalShape& original = header_.original_shapes.emplace_back();
    original.name = key_.substr(kGgufOriginalShapeKey.size());
    bool is_possible = true;
    for (std::uint64_t i = 0; i < value.count; ++i) {
      const auto dim = number<std::int32_t>();
      is_possible = is_possible && dim >= 0;
      original.dims.push_back(static_cast<std::uint64_t>(dim));
    }
    if (!is_possible) header_.original_shapes.pop_back();
  }

  void set_alignment(std::uint32_t alignment) {
    alignment_ = alignment;
    if (!std::has_single_bit(alignment_)) {
      refuse(ErrorCode::kGgufAlignment, std::to_string(alignment_) + " is not a power of two");
    }
  }

  void sort_metadata() {
    header_.metadata.sort();
    for (std::size_t i = 1; i < header_.metadata.size(); ++i) {
      const std::string_view key = header_.metadata[i].first;
      if (key != header_.metadata[i - 1].first) continue;
      subject_ = "key " + in_quotes(key);
      refuse(ErrorCode::kGgufKey, "the key occurs twice");
    }
  }

  // --- tensors

  // Reads a tensor. Its data must begin at `begin`. Returns the offset at which the data of the
  // next tensor must begin.
  std::uint64_t read_tensor(std::uint64_t begin) {
    TensorRecord tensor;
    const auto name_length = number<std::uint64_t>();
    if (name_length > kMaxName) {
      refuse(ErrorCode::kGgufName, "tensor " + std::to_string(header_.tensors.size()) +
                                       ": a name of " + std::to_string(name_length) +
                                       " bytes, over 127");
    }
    if (name_length > kUsualName) ++long_names_;
    const std::string_view whole = text(name_length);
    const std::string_view name = up_to_nul(whole);
    tensor.name_begin = header_.names.size();
    tensor.name_length = static_cast<std::uint32_t>(name.size());
    header_.names += name;
    tensor_ = tensor;

    tensor.rank = number_of_tensor<std::uint32_t>();
    if (tensor.rank > kMaxRank) {
      refuse_tensor(ErrorCode::kGgufShape, std::to_string(tensor.rank) + " dimensions, over 4");
    }
    std::array<std::uint64_t, kMaxRank> dims{1, 1, 1, 1};  // the fastest first
    for (std::uint32_t i = 0; i < tensor.rank; ++i) {
      const auto dim = number_of_tensor<std::int64_t>();
      if (dim < 0) refuse_tensor(ErrorCode::kGgufShape, "dimension " + std::to_string(dim));
      dims[i] = static_cast<std::uint64_t>(dim);
    }
    tensor.shape_begin = header_.dims.size();
    for (std::uint32_t i = tensor.rank; i-- > 0;) header_.dims.push_back(dims[i]);

    const auto type = number_of_tensor<std::uint32_t>();
    const std::optional<DType> dtype = dtype_from_gguf(type);
    if (!dtype) {
      const std::string_view removed = removed_type(type);
      refuse_tensor(
          ErrorCode::kGgufType,
          removed.empty()
              ? "type " + std::to_string(type) + " is unknown: a newer stfs may support it"
              : "type " + std::to_string(type) + ", " + std::string(removed) +
                    ", was removed from ggml: download or convert the model again");
    }
    tensor.dtype = *dtype;
    tensor.length = length_of(*dtype, dims);
    tensor.offset = number_of_tensor<std::uint64_t>();
    if (tensor.offset != begin) {
      refuse_tensor(ErrorCode::kGgufOffset, "offset " + std::to_string(tensor.offset) +
                                                ", but the tensors before it end at " +
                                                std::to_string(begin));
    }
    header_.tensors.push_back(tensor);
    std::uint64_t end = 0;
    if (__builtin_add_overflow(begin, tensor.length, &end) || !pad(end)) {
      refuse_tensor(ErrorCode::kGgufShape, "its end overflows 64 bits");
    }
    return end;
  }

  std::uint64_t length_of(DType dtype, std::span<const std::uint64_t, kMaxRank> dims) const {
    const TypeInfo& info = type_info(dtype);
    if (dims[0] % info.block_elements != 0) {
      refuse_tensor(ErrorCode::kGgufShape, "rows of " + std::to_string(dims[0]) +
                                               " elements are not whole blocks of " +
                                               std::to_string(info.block_elements));
    }
    std::uint64_t elements = 1;
    bool overflows = false;
    for (const std::uint64_t dim : dims) {
      overflows = __builtin_mul_overflow(elements, dim, &elements) || overflows;
    }
    if (std::ranges::find(dims, 0U) != dims.end()) return 0;
    const std::optional<std::uint64_t> bytes = info.bytes_of(elements);
    if (overflows || !bytes) {
      refuse_tensor(ErrorCode::kGgufShape, "the size in bits overflows 64 bits");
    }
    return *bytes;
  }

  // Rounds `offset` up to the alignment. Returns false if it overflows.
  bool pad(std::uint64_t& offset) const {
    if (__builtin_add_overflow(offset, std::uint64_t{alignment_} - 1, &offset)) return false;
    offset = offset / alignment_ * alignment_;
    return true;
  }

  [[noreturn]] void refuse_tensor(ErrorCode code, const std::string& rule) const {
    throw Error(code, place_, "tensor " + in_quotes(header_.name(tensor_)) + ": " + rule);
  }
  template <class T>
  T number_of_tensor() {
    if (sizeof(T) > window_.left()) {
      refuse_tensor(ErrorCode::kGgufTruncated,
                    "the file ends here, with " + std::to_string(size_) + " bytes");
    }
    return little<T>(window_.take(sizeof(T)));
  }

  // Converts the tensors' offsets from offsets in the data to offsets in the file.
  void place_data() {
    std::uint64_t begin = window_.position();
    if (!header_.tensors.empty() && (!pad(begin) || begin > size_)) {
      refuse(ErrorCode::kGgufTruncated, "the file has " + std::to_string(size_) +
                                            " bytes and needs " + std::to_string(begin) +
                                            " before the data");
    }
    header_.raw = {0, begin};
    for (TensorRecord& tensor : header_.tensors) {
      std::uint64_t end = 0;
      tensor_ = tensor;
      if (__builtin_add_overflow(tensor.offset, begin, &tensor.offset) ||
          __builtin_add_overflow(tensor.offset, tensor.length, &end) || end > size_) {
        refuse_tensor(ErrorCode::kGgufData, "the file has " + std::to_string(size_) +
                                                " bytes and ends before the tensor does");
      }
    }
  }

  void sort_tensors() {
    const auto name_of = [this](std::uint32_t i) { return header_.name(header_.tensors[i]); };
    auto [order, any_equal] = sorted_order(header_.tensors.size(), name_of);
    header_.by_name = std::move(order);
    for (std::size_t i = 1; any_equal && i < header_.by_name.size(); ++i) {
      tensor_ = header_.tensors[header_.by_name[i]];
      if (header_.name(tensor_) == name_of(header_.by_name[i - 1])) {
        refuse_tensor(ErrorCode::kDuplicateTensor, "the name occurs twice");
      }
    }
  }

  Window window_;
  std::uint64_t size_;  // bytes of the file
  const std::string& place_;
  Header header_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t long_names_ = 0;  // names longer than kUsualName
  std::uint64_t key_count_ = 0;
  std::uint32_t alignment_ = 32;
  bool has_alignment_ = false;      // general.alignment was read
  std::uint64_t key_texts_ = 0;     // bytes of all keys so far
  std::uint64_t texts_ = 0;         // bytes of the strings that are kept
  std::string subject_ = "header";  // the subject of messages
  std::string key_;                 // the key that is being read
  TensorRecord tensor_;             // the tensor that is being read or checked, for messages
};

// Gives a tensor another shape, if both have the same number of elements.
void apply(const OriginalShape& original, TensorRecord& tensor, Header& header) {
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : header.shape(tensor)) elements *= dim;
  std::uint64_t product = 1;
  bool overflows = false;
  for (const std::uint64_t dim : original.dims) {
    overflows = __builtin_mul_overflow(product, dim, &product) || overflows;
  }
  const bool is_empty = std::ranges::find(original.dims, 0U) != original.dims.end();
  if ((overflows && !is_empty) || product != elements) return;
  const std::span<const std::uint64_t> shape = header.shape(tensor);
  const std::vector<std::uint64_t> stored(shape.begin(), shape.end());
  tensor.stored_rank = static_cast<std::uint8_t>(stored.size());
  header.dims.insert(header.dims.end(), stored.begin(), stored.end());
  tensor.shape_begin = header.dims.size();
  tensor.rank = static_cast<std::uint32_t>(original.dims.size());
  header.dims.insert(header.dims.end(), original.dims.begin(), original.dims.end());
}

}  // namespace

std::string_view up_to_nul(std::string_view text) { return text.substr(0, text.find('\0')); }

std::optional<std::size_t> find_gguf_key(const Metadata& metadata, std::string_view key) {
  // A NUL sorts before every other byte, so the keys that are equal up to a NUL are neighbours.
  std::optional<std::size_t> first;
  for (std::size_t i = metadata.lower_bound(key);
       i < metadata.size() && up_to_nul(metadata[i].first) == key; ++i) {
    if (!first || metadata.value(i).encoded.offset < metadata.value(*first).encoded.offset) {
      first = i;
    }
  }
  return first;
}

bool is_gguf(std::span<const std::byte> first) {
  return first.size() >= kMagic.size() &&
         std::memcmp(first.data(), kMagic.data(), kMagic.size()) == 0;
}

std::uint64_t gguf_header_length(std::span<const std::byte>) { return kGgufFirstPiece; }

Header read_gguf(const Source& source, const std::string& place) {
  return GgufReader(source, place).read();
}

void apply_original_shapes(std::span<const OriginalShape> shapes, Header& header) {
  if (shapes.empty()) return;
  for (TensorRecord& tensor : header.tensors) {
    if (tensor.stored_rank != TensorRecord::kStoredAsShape) continue;
    const std::string_view name = header.name(tensor);
    const auto at = std::ranges::lower_bound(shapes, name, {}, &OriginalShape::name);
    if (at != shapes.end() && at->name == name) apply(*at, tensor, header);
  }
}

std::uint64_t gguf_value_size(ValueType type) { return size_of(type); }

std::string_view value_type_name(ValueType type) {
  constexpr std::array<std::string_view, 13> kNames{
      "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
      "bool",  "string", "array",  "uint64", "int64",  "float64"};
  return kNames[static_cast<std::size_t>(type)];
}

void write_gguf_number(ValueType type, std::span<const std::byte> bytes, TextWriter& out) {
  std::array<char, 32> buffer{};
  bool is_finite = false;
  const std::string_view text = text_of(type, bytes.data(), buffer, is_finite);
  out.add(is_finite ? text : "null");
}

}  // namespace stfs
