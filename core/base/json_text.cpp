#include "core/base/json_text.h"

namespace stfs {

// The number of values is limited too, because a value takes at least two bytes of the text but up
// to a hundred bytes of memory. The text is not parsed: the counts are upper bounds.
bool is_bounded_json(std::string_view text) {
  constexpr std::size_t kDeepest = 64;
  if (text.size() > kMaxJson) return false;
  std::size_t depth = 0;
  std::size_t values = 1;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string && c == '\\') ++i;
    if (c == '"') is_in_string = !is_in_string;
    if (is_in_string) continue;
    const bool opens = c == '{' || c == '[';
    if (opens) ++depth;
    if ((c == '}' || c == ']') && depth > 0) --depth;
    if (opens || c == ',') ++values;
    if (depth > kDeepest || values > kMaxJsonValues) return false;
  }
  return true;
}

std::string without_infinities(std::string_view text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  std::size_t copied = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      is_in_string = !is_in_string;
    } else if (!is_in_string && (text[i] == '-' || text[i] == 'I' || text[i] == 'N')) {
      const std::string_view rest = text.substr(i);
      for (const std::string_view word : kWords) {
        if (!rest.starts_with(word)) continue;
        out.append(text.substr(copied, i - copied)).append("null");
        copied = i + word.size();
        i = copied - 1;
        break;
      }
    }
  }
  return out.append(text.substr(copied));
}

}  // namespace stfs
