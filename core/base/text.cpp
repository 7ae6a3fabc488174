#include "core/base/text.h"

#include "core/base/without_queries.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// A code point and its length in bytes; the length is 0 if the bytes are not UTF-8.
struct CodePoint {
  char32_t value;
  std::size_t length;
};

// Returns the first code point of a text, which must not be empty (RFC 3629).
CodePoint decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {0, 0};
  char32_t value = lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0, 0};
    value = (value << 6) | (byte(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (overlong || surrogate || value > 0x10FFFF) return {0, 0};
  return {value, length};
}

// Returns true for control characters (C0, DEL, C1), for Unicode marks that reorder or hide the
// text around them, and for the two noncharacters that XML cannot contain.
bool is_deceptive(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
         c == 0xFFFE || c == 0xFFFF;
}

// Returns the position of the scheme of the first URL in a text, or npos if there is no URL.
std::size_t begin_of_scheme(std::string_view text) {
  std::size_t at = text.find("://");
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("+-.").find(c) != std::string_view::npos;
  };
  while (at != std::string_view::npos && at > 0 && is_letter(text[at - 1])) --at;
  return at;
}

// Does the work of without_queries() for one word, or for a text that begins with a URL.
std::string without_query(std::string_view text) {
  constexpr int kMaxUrls = 64;  // a limit because the rest of the text is searched for each URL
  std::string out;
  for (int i = 0; i < kMaxUrls; ++i) {
    const std::size_t begin = begin_of_scheme(text), mark = text.find('?');
    const std::string query = mark < begin ? lower_case(text.substr(mark)) : "";
    for (const char* const secret : {"signature=", "sig=", "token=", "credential=", "secret="}) {
      if (query.find(secret) != std::string_view::npos) return out.append(text.substr(0, mark));
    }
    if (begin == std::string_view::npos) return out.append(text);
    const std::size_t authority = text.find("://", begin) + 3;
    const std::string scheme = lower_case(text.substr(begin, authority - 3 - begin));
    std::string_view rest = text.substr(authority);
    if (scheme != "s3" && scheme != "hf") rest = rest.substr(0, rest.find_first_of("?#"));
    const std::size_t user = rest.substr(0, rest.find('/')).rfind('@');
    if (user != std::string_view::npos && scheme != "hf") rest.remove_prefix(user + 1);
    out += text.substr(0, authority);
    text = rest;
  }
  return out + "...";
}

void add_escape(TextWriter& out, char32_t c) {
  switch (c) {
    case '\n': out.add("\\n"); return;
    case '\r': out.add("\\r"); return;
    case '\t': out.add("\\t"); return;
    default: break;
  }
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), c < 0x100 ? "\\x%02x" : "\\u%04x",
                static_cast<unsigned>(c));
  out.add(buffer.data());
}

// Returns the size of json_string(text) in bytes: nlohmann/json escapes only the characters for
// which RFC 8259 requires it. Returns nullopt if the text is not UTF-8.
std::optional<std::uint64_t> json_string_size(std::string_view text) {
  std::uint64_t size = 2 + text.size();
  while (!text.empty()) {
    const CodePoint c = decode(text);
    if (c.length == 0) return std::nullopt;
    const bool is_short =
        c.value == '"' || c.value == '\\' || (c.value >= 8 && c.value <= 13 && c.value != 11);
    if (is_short) {
      size += 1;  // "\n"
    } else if (c.value < 0x20) {
      size += 5;  // "\u001f"
    }
    text.remove_prefix(c.length);
  }
  return size;
}

// Returns the length of the common prefix in bytes. Compares eight bytes at a time, because names
// in a checkpoint often have long common prefixes.
std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto word = [](const char* at) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, at, sizeof bytes);
    return bytes;
  };
  const std::size_t least = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (least - same >= sizeof(std::uint64_t) && word(&a[same]) == word(&b[same])) same += 8;
  while (same < least && a[same] == b[same]) ++same;
  return same;
}

}  // namespace

TextWriter& TextWriter::add(std::string_view part) {
  if (text_ != nullptr) *text_ += part;
  size_ += part.size();
  return *this;
}

TextWriter& TextWriter::number(std::uint64_t value) {
  std::array<char, 20> digits{};  // enough for 2^64 - 1
  const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return add(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
}

TextWriter& TextWriter::json(std::string_view part) {
  if (text_ == nullptr) {
    if (const auto size = json_string_size(part)) {
      size_ += *size;
      return *this;
    }
  }
  return add(json_string(part));
}

TextWriter& TextWriter::json_inside(std::string_view part) {
  constexpr std::size_t kQuotes = 2;
  if (text_ == nullptr) {
    if (const auto size = json_string_size(part)) {
      size_ += *size - kQuotes;
      return *this;
    }
  }
  const std::string quoted = json_string(part);
  return add(std::string_view(quoted).substr(1, quoted.size() - kQuotes));
}

TextWriter& TextWriter::printable(std::string_view part) {
  while (!part.empty()) {
    const CodePoint c = decode(part);
    if (c.length == 0) {
      add_escape(*this, static_cast<unsigned char>(part[0]));
    } else if (is_deceptive(c.value)) {
      add_escape(*this, c.value);
    } else if (c.value == '\\') {
      add("\\\\");
    } else {
      add(part.substr(0, c.length));
    }
    part.remove_prefix(c.length == 0 ? 1 : c.length);
  }
  return *this;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  TextWriter(out).printable(text);
  return out;
}

std::string printable_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    const CodePoint c = decode(json);
    const std::size_t length = std::max<std::size_t>(c.length, 1);
    if (c.length > 0 && c.value > 0x20 && is_deceptive(c.value)) {
      std::array<char, 16> buffer{};
      std::snprintf(buffer.data(), buffer.size(), "\\u%04x", static_cast<unsigned>(c.value));
      out += buffer.data();
    } else {
      out += json.substr(0, length);
    }
    json.remove_prefix(length);
  }
  return out;
}

std::string without_queries(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  if (text.find('?') == std::string_view::npos && text.find("://") == std::string_view::npos)
    return std::string(text);
  if (begin_of_scheme(text) == 0) return without_query(text);  // the URL may contain blanks
  std::string out;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
    out += without_query(word);
    text.remove_prefix(word.size());
    const std::size_t blanks = std::min(text.find_first_not_of(kBlanks), text.size());
    out += text.substr(0, blanks);
    text.remove_prefix(blanks);
  }
  return out;
}

std::string in_quotes(std::string_view typed) {
  constexpr std::size_t kKeep = 96;  // bytes kept at each end of a long text
  const std::string text_of_name = without_queries(typed);
  const std::string_view text = text_of_name;
  std::string shown;
  if (text.size() > 200) {
    const std::size_t head = utf8_floor(text, kKeep);
    const std::size_t tail = utf8_floor(text, text.size() - kKeep);
    shown = printable(text.substr(0, head)) + "..." + printable(text.substr(tail));
  } else {
    shown = printable(text);
  }
  std::string out = "\"";
  for (const char c : shown) {
    if (c == '"') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = decode(text);
    if (c.length == 0) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

std::size_t utf8_floor(std::string_view text, std::size_t n) {
  if (n >= text.size()) return text.size();
  constexpr std::size_t kMaxBack = 3;  // because a character has at most four bytes (RFC 3629)
  for (std::size_t back = 0; back <= std::min(n, kMaxBack); ++back) {
    if ((static_cast<unsigned char>(text[n - back]) & 0xC0) != 0x80) return n - back;
  }
  return n;
}

std::strong_ordering natural_order(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // Removes the digits at the beginning of a text, and returns them without leading zeros.
  const auto take_number = [&](std::string_view& text) {
    const auto end = std::ranges::find_if_not(text, is_digit);
    std::string_view digits(text.begin(), end);
    text = std::string_view(end, text.end());
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    return digits;
  };
  // Begin where the texts differ, or before that, where the number around this place begins.
  std::string_view left = a;
  std::string_view right = b;
  std::size_t same = common_prefix(a, b);
  while (same > 0 && is_digit(a[same - 1])) --same;
  left.remove_prefix(same);
  right.remove_prefix(same);
  while (!left.empty() && !right.empty()) {
    if (is_digit(left.front()) && is_digit(right.front())) {
      const std::string_view number_a = take_number(left);
      const std::string_view number_b = take_number(right);
      if (const auto order = number_a.size() <=> number_b.size(); std::is_neq(order)) return order;
      if (const auto order = number_a <=> number_b; std::is_neq(order)) return order;
    } else {
      if (const auto order = left.substr(0, 1) <=> right.substr(0, 1); std::is_neq(order))
        return order;
      left.remove_prefix(1);
      right.remove_prefix(1);
    }
  }
  if (left.empty() != right.empty()) {
    return left.empty() ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  return a <=> b;
}

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) return most + 1;
  const std::size_t same = common_prefix(a, b);
  a.remove_prefix(same);
  b.remove_prefix(same);
  // The distances between the current prefix of `a` and each prefix of `b`.
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    // If the lengths of two prefixes differ by more than `most`, so does their distance.
    const std::size_t first = i > most ? i - most : 1;
    const std::size_t last = std::min(b.size(), i + most);
    std::size_t diagonal = std::exchange(row[first - 1], first == 1 ? i : most + 1);
    std::size_t least = row[first - 1];
    for (std::size_t j = first; j <= last; ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      least = std::min(least, row[j]);
    }
    if (least > most) return most + 1;
  }
  return std::min(row.back(), most + 1);
}

void append_natural_key(std::string& keys, std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  while (!text.empty()) {
    const auto digits_end = std::ranges::find_if_not(text, is_digit);
    std::string_view digits(text.begin(), digits_end);
    if (digits.empty()) {
      const auto end = std::ranges::find_if(text, is_digit);
      keys.append(text.begin(), end);
      text = std::string_view(end, text.end());
      continue;
    }
    text = std::string_view(digits_end, text.end());
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    // Write the number of digits first, so that a longer number sorts after a shorter one. It is
    // written in digits too, so that numbers keep their order relative to other characters.
    constexpr std::size_t kMost = 9;
    keys.append(digits.size() / kMost, '9');
    keys += static_cast<char>('0' + digits.size() % kMost);
    keys += digits;
  }
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return lower;
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // Use the next unit from 1023.95 on, which would be printed as 1024.0.
  while (value >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return buffer.data();
}

void write_shape(std::span<const std::uint64_t> shape, TextWriter& out) {
  const char* separator = "[";
  for (const std::uint64_t dim : shape) {
    out.add(separator).number(dim);
    separator = ",";
  }
  out.add(shape.empty() ? "[]" : "]");
}

std::string shape_json(std::span<const std::uint64_t> shape) {
  std::string text;
  TextWriter out(text);
  write_shape(shape, out);
  return text;
}

std::string rfc3339(std::int64_t seconds, std::int64_t nanoseconds) {
  const std::time_t time = seconds;
  std::tm utc{};
  if (gmtime_r(&time, &utc) == nullptr || utc.tm_year > 9999 - 1900 || utc.tm_year < -1900) {
    return "@" + std::to_string(seconds);  // because a year of RFC 3339 has four digits
  }
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%m-%dT%H:%M:%S", &utc);
  std::array<char, 64> buffer{};
  // The year is not left to strftime(3), which writes a year before 1000 with fewer digits.
  std::snprintf(buffer.data(), buffer.size(), "%04d-%s.%09lldZ", utc.tm_year + 1900, date.data(),
                static_cast<long long>(nanoseconds));
  return buffer.data();
}

}  // namespace stfs
