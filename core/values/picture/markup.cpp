#include "core/values/picture/markup.h"

#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace stfs::markup {

std::string html_of(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string escaped(std::string_view text) { return html_of(printable(text)); }

std::string sentence(std::string_view text) {
  std::string out;
  for (std::size_t end = text.find('\\'); end != std::string_view::npos; end = text.find('\\')) {
    out += printable(text.substr(0, end)) + '\\';
    text.remove_prefix(end + 1);
  }
  return html_of(out + printable(text));
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const std::size_t head = utf8_floor(text, most / 2);
  const std::size_t tail = utf8_floor(text, text.size() - most / 2);
  return std::string(text.substr(0, head)) + "…" + std::string(text.substr(tail));
}

std::string name_of(std::string_view name) { return escaped(shortened(name)); }

std::string fitted(std::string_view text, std::size_t most) {
  for (std::size_t bytes = most;;) {
    std::string part = shortened(text, bytes);
    const std::size_t escaped = html_of(part).size();
    if (bytes < 8 || escaped <= most + 3) return part;  // 3: the ellipsis
    bytes = bytes * most / escaped;
  }
}

std::string json_text(std::string_view text) { return json_of(printable(text)); }

std::string json_of(std::string_view text) {
  std::string out;
  for (const char c : json_string(text)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string grouped(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return grouped(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string human_count(std::uint64_t count) {
  constexpr std::array<std::string_view, 5> kUnits{"", " K", " M", " B", " T"};
  auto value = static_cast<double>(count);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  if (unit == 0) return std::to_string(count);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
  return text.data() + std::string(kUnits[unit]);
}

std::string number(double value, int digits) {
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  // Near the largest double, rounding to fewer digits may exceed it.
  if (std::isinf(std::strtod(text.data(), nullptr))) {
    std::snprintf(text.data(), text.size(), "%.17g", value);
  }
  return text.data();
}

std::string json_number(double value, int digits) {
  return std::isfinite(value) ? number(value, digits) : "null";
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t dim : shape.first(std::min(shape.size(), kMaxDimensions))) {
    text += (text.empty() ? "" : "×") + std::to_string(dim);
  }
  return shape.size() > kMaxDimensions ? text + "×…" : text;
}

}  // namespace stfs::markup
