#include "core/format/npy_header.h"

#include "core/base/text.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxNpyHeader = 1 << 20;  // bytes of the dictionary

class NpyParser {
 public:
  NpyHeader parse(std::string_view header) {
    out_.length = header.size();
    dict_ = header.substr(header[kNpyMagic.size()] == 1 ? 10 : 12);
    const bool is_good =
        has_each_key_once() && read_dtype() && read_shape() && read_order() && count();
    if (!is_good && out_.refusal.empty()) out_.refusal = "its header is not valid";
    return std::move(out_);
  }

 private:
  bool refuse(std::string why) {
    out_.refusal = std::move(why);
    return false;
  }

  // Refuses a header with a repeated key, of which NumPy takes the last value. Also refuses other
  // quotes and escapes, with which a repeated key might not be found.
  bool has_each_key_once() {
    if (dict_.find_first_of("\"\\#") != std::string_view::npos) {
      return refuse("its header has quotes, escapes or comments that NumPy does not write");
    }
    for (const std::string key : {"'descr'", "'fortran_order'", "'shape'"}) {
      const std::size_t at = dict_.find(key);
      if (at != std::string_view::npos && dict_.find(key, at + 1) != std::string_view::npos) {
        return refuse("its header has " + key + " twice");
      }
    }
    return true;
  }

  // Returns the text after a key and its colon, or "" if the dictionary does not have the key in
  // the one form that NumPy writes.
  std::string_view behind(const std::string& key) const {
    const std::size_t at = dict_.find("'" + key + "':");
    if (at == std::string_view::npos) return {};
    std::string_view rest = dict_.substr(at + key.size() + 3);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    return rest;
  }

  bool read_dtype() {
    std::string_view descr = behind("descr");
    if (descr.empty()) return refuse("its header has no \"descr\"");
    if (!descr.starts_with('\'')) {
      return refuse("an array of structures: only numbers are tensors");
    }
    descr.remove_prefix(1);
    descr = descr.substr(0, descr.find('\''));
    if ((descr.starts_with("|V") || descr.starts_with("<V")) && read_width(descr.substr(2))) {
      return true;
    }
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto type = static_cast<DType>(i);
      if (descr.size() < 2 || descr[1] == 'V' || type_info(type).npy != descr) continue;
      out_.dtype = type;
      return true;
    }
    return refuse("safetensors has no type for " + in_quotes(descr) +
                  ": only little-endian numbers and bool are supported");
  }

  bool read_width(std::string_view digits) {
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), opaque_);
    return result.ec == std::errc() && result.ptr == digits.data() + digits.size() && opaque_ > 0;
  }

  bool read_shape() {
    std::string_view rest = behind("shape");
    const std::size_t end = rest.find(')');
    if (!rest.starts_with('(') || end == std::string_view::npos) {
      return refuse("its header has no valid shape");
    }
    rest = rest.substr(1, end - 1);
    while (!rest.empty()) {
      std::uint64_t dim = 0;
      const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), dim);
      if (result.ec != std::errc()) return refuse("its header has no valid shape");
      out_.shape.push_back(dim);
      rest.remove_prefix(static_cast<std::size_t>(result.ptr - rest.data()));
      rest.remove_prefix(std::min(rest.find_first_not_of(", L"), rest.size()));
      if (out_.shape.size() > kNpyMaxRank) return refuse("too many dimensions");
    }
    return true;
  }

  bool read_order() {
    const std::string_view order = behind("fortran_order");
    out_.is_fortran = order.starts_with("True") && out_.shape.size() > 1;
    if (!order.starts_with("True") && !order.starts_with("False")) {
      return refuse("its header has no \"fortran_order\"");
    }
    if (opaque_ > 1) out_.shape.push_back(opaque_);
    out_.has_opaque = opaque_ > 1;
    return true;
  }

  bool count() {
    std::uint64_t elements = 1;
    bool overflows = false;
    const bool is_empty = std::ranges::find(out_.shape, 0U) != out_.shape.end();
    for (const std::uint64_t dim : out_.shape) {
      overflows = overflows || __builtin_mul_overflow(elements, dim, &elements);
    }
    const auto bytes = type_info(out_.dtype).bytes_of(is_empty ? 0 : elements);
    if ((overflows && !is_empty) || !bytes) return refuse("its size does not fit its shape");
    if (overflows) return refuse("its shape is too large");
    out_.bytes = *bytes;
    return true;
  }

  std::string_view dict_;
  std::uint64_t opaque_ = 0;  // bytes of an element without a type, or 0
  NpyHeader out_;
};

}  // namespace

std::optional<std::uint64_t> npy_header_length(std::string_view first) {
  if (first.size() < kNpyPrefix || !first.starts_with(kNpyMagic)) return std::nullopt;
  const char major = first[kNpyMagic.size()];
  if (major < 1 || major > 3) return std::nullopt;
  const std::size_t bytes = major == 1 ? 2 : 4;
  std::uint64_t length = 0;
  std::memcpy(&length, first.data() + 8, bytes);  // little-endian
  return length > kMaxNpyHeader ? std::nullopt : std::optional(8 + bytes + length);
}

NpyHeader parse_npy_header(std::string_view header) { return NpyParser().parse(header); }

}  // namespace stfs
