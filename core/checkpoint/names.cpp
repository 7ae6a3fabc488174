#include "core/checkpoint/names.h"

#include "core/base/sha256.h"
#include "core/base/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace stfs {
namespace {

constexpr std::string_view kUpperHex = "0123456789ABCDEF";
constexpr std::string_view kLowerHex = "0123456789abcdef";
constexpr std::size_t kDigestDigits = 16;
constexpr std::size_t kTail = 1 + kDigestDigits;  // `~` and the digits, bytes
constexpr std::size_t kCutTo = kMaxComponent - kTail;

void append_escaped(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  out += '%';
  out += kUpperHex[byte >> 4];
  out += kUpperHex[byte & 15];
}

bool has_cut_form(std::string_view component) {
  if (component.size() <= kTail) return false;
  const std::string_view tail = component.substr(component.size() - kTail);
  return tail[0] == '~' && tail.find_first_not_of(kLowerHex, 1) == std::string_view::npos;
}

// Returns the number of bytes to keep, such that the cut splits neither a UTF-8 character nor an
// escape.
std::size_t cut_position(std::string_view component) {
  const std::size_t at = utf8_floor(component, std::min(kCutTo, component.size()));
  const std::size_t percent = component.substr(0, at).rfind('%');
  return percent != std::string_view::npos && at - percent < 3 ? percent : at;
}

std::string cut(const std::string& component) {
  return component.substr(0, cut_position(component)) + '~' +
         sha256_hex(component).substr(0, kDigestDigits);
}

void append_component(EncodedPath& out, std::string_view component, bool first,
                      PathStyle style = PathStyle::kSlashes) {
  const bool dots = component == "." || component == "..";
  std::string encoded;
  encoded.reserve(component.size());
  for (std::size_t i = 0; i < component.size(); ++i) {
    const char c = component[i];
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    const bool hidden = dots || (first && i == 0 && component == ".stfs");
    const bool dot = style == PathStyle::kDotsEscaped && c == '.';
    if (control || hidden || dot || c == '%' || c == '/') {
      append_escaped(encoded, c);
    } else {
      encoded += c;
    }
  }
  if (encoded.size() > kMaxComponent || has_cut_form(encoded)) {
    encoded = cut(encoded);
    out.cut = true;
  }
  out.path += encoded;
}

int hex_value(char c) {
  const std::size_t value = kUpperHex.find(c);
  return value == std::string_view::npos ? -1 : static_cast<int>(value);
}

}  // namespace

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > kCutTo || name[0] == '.' || has_cut_form(name)) return false;
  // Check eight bytes at a time. special() sets the top bit of each byte that encode_path() would
  // change. It may also set the top bits of bytes above such a byte, but in a word without such a
  // byte it sets none.
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const auto below = [](std::uint64_t word, unsigned char c) { return (word - kOnes * c) & ~word; };
  const auto equal = [&](std::uint64_t word, char c) {
    return below(word ^ (kOnes * static_cast<unsigned char>(c)), 1);
  };
  const auto special = [&](std::uint64_t word) {
    return below(word, 0x20) | equal(word, 0x7F) | equal(word, '%') | equal(word, '/');
  };
  std::uint64_t special_bits = 0;
  std::uint64_t word = kOnes * 'a';
  const std::size_t whole = name.size() / sizeof word * sizeof word;
  for (std::size_t i = 0; i < whole; i += sizeof word) {
    std::memcpy(&word, name.data() + i, sizeof word);
    special_bits |= special(word);
  }
  word = kOnes * 'a';
  std::memcpy(&word, name.data() + whole, name.size() - whole);
  special_bits |= special(word);
  return (special_bits & kOnes * 0x80) == 0;
}

EncodedPath encode_path(std::string_view name, std::span<const std::size_t> tensor_prefixes,
                        PathStyle style) {
  EncodedPath out;
  if (name.empty()) {
    out.path = "%";
    return out;
  }
  const auto may_separate = [&](char c) {
    return c == '/' || (c == '.' && style == PathStyle::kDots);
  };
  std::size_t begin = 0;
  auto prefix = tensor_prefixes.begin();
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!may_separate(name[i])) continue;
    while (prefix != tensor_prefixes.end() && *prefix < i) ++prefix;
    const bool after_tensor = prefix != tensor_prefixes.end() && *prefix == i;
    const bool separates =
        i > 0 && i + 1 < name.size() && !may_separate(name[i - 1]) && !after_tensor;
    if (!separates) continue;
    append_component(out, name.substr(begin, i - begin), begin == 0, style);
    out.path += '/';
    begin = i + 1;
  }
  append_component(out, name.substr(begin), begin == 0, style);
  return out;
}

std::string encode_component(std::string_view name) {
  EncodedPath out;
  if (name.empty()) return "%";
  append_component(out, name, false);
  return out.path;
}

std::optional<std::string> decode_path(std::string_view path) {
  if (path == "%") return "";
  std::string name;
  name.reserve(path.size());
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      name += path[i];
      continue;
    }
    if (path.size() - i < 3) return std::nullopt;
    const int high_digit = hex_value(path[i + 1]);
    const int low_digit = hex_value(path[i + 2]);
    if (high_digit < 0 || low_digit < 0) return std::nullopt;
    const int byte = high_digit * 16 + low_digit;
    if (byte >= 0x20 && byte != 0x7F && byte != '%' && byte != '/' && byte != '.') {
      return std::nullopt;
    }
    name += static_cast<char>(byte);
    i += 2;
  }
  return name;
}

}  // namespace stfs
