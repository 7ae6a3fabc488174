#include "core/report/page_parts.h"

#include "core/base/sha256.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace stfs::markup {
namespace {

std::string base64(std::string_view hex) {
  constexpr std::string_view kBase64 =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char digit : hex) {
    bits = bits << 4 | static_cast<std::uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    count += 4;
    if (count >= 6) {
      count -= 6;
      out += kBase64[bits >> count & 63];
    }
  }
  if (count > 0) out += kBase64[bits << (6 - count) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

}  // namespace

std::string hash_source(std::string_view text) {
  return "'sha256-" + base64(sha256_hex(text)) + "'";
}

std::string heading(std::string_view text, std::string_view style) {
  const std::string attribute = style.empty() ? "" : " class=\"" + std::string(style) + "\"";
  return "<th scope=\"col\"" + attribute + ">" + std::string(text) + "</th>";
}

void write_filled(std::string_view html, const std::map<std::string_view, PagePart>& parts,
                  const Write& write) {
  while (!html.empty()) {
    const std::size_t begin = html.find("{{");
    write(html.substr(0, begin));
    if (begin == std::string_view::npos) break;
    const std::size_t end = html.find("}}", begin);
    parts.at(html.substr(begin + 2, end - begin - 2))(write);
    html.remove_prefix(end + 2);
  }
}

PagePart text_part(std::string text) {
  return [text = std::move(text)](const Write& write) { write(text); };
}

}  // namespace stfs::markup
