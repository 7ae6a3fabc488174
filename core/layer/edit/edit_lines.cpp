#include "core/layer/edit/edit_lines.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace stfs {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Splits a line into words. Returns nullopt if a quote is not closed.
std::optional<std::vector<std::string>> words_of(std::string_view line) {
  std::vector<std::string> words;
  bool is_in_word = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (is_blank(c)) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word && c == '#') break;
    if (!std::exchange(is_in_word, true)) words.emplace_back();
    if (c != '\'' && c != '"') {
      words.back() += c;
      continue;
    }
    const std::size_t end = line.find(c, i + 1);
    if (end == std::string_view::npos) return std::nullopt;
    words.back() += line.substr(i + 1, end - i - 1);
    i = end;
  }
  return words;
}

}  // namespace

void EditLine::refuse(const std::string& rule) const {
  throw Error(ErrorCode::kEdit, place, "line " + std::to_string(number) + ": " + rule);
}

std::string edit_argument(std::string_view place, std::string_view text) {
  return std::string(place) + '\n' + std::string(text);
}

bool is_edit_text(std::string_view argument) {
  return argument.find('\n') != std::string_view::npos;
}

std::string edit_place(std::string_view argument) {
  return std::string(argument.substr(0, argument.find('\n')));
}

std::string public_edits(std::string_view argument) {
  constexpr std::string_view kMark = "://";
  constexpr std::string_view kAround = " \t\r\n'\"";  // the ends of a word or of a quoted part
  std::string out;
  for (;;) {
    const std::size_t mark = argument.find(kMark);
    if (mark == std::string_view::npos) return out.append(argument);
    const std::size_t begin = argument.find_last_of(kAround, mark) + 1;  // npos + 1 is 0
    const std::size_t end = std::min(argument.find_first_of(kAround, mark), argument.size());
    const std::string_view word = argument.substr(begin, end - begin);
    // The word may be SOURCE::NAME. The search for "::" starts at the URL's path, because an IPv6
    // address may contain "::" too.
    const std::size_t path = std::min(word.find('/', mark - begin + kMark.size()), word.size());
    const std::size_t name = std::min(word.find("::", path), word.size());
    out.append(argument.substr(0, begin)).append(public_name(word.substr(0, name)));
    out.append(word.substr(name));
    argument.remove_prefix(end);
  }
}

void for_each_edit_line(std::string_view argument,
                        const std::function<void(const EditLine& line)>& take) {
  const std::size_t end = argument.find('\n');
  const std::string file = edit_place(argument);
  const bool is_of_command_line = last_component(file) == kEditLinePlace;
  EditLine line{.place = is_of_command_line ? std::string(kEditLinePlace) : public_name(file),
                .number = 0,
                .words = {},
                .directory = parent_name(file)};
  std::string_view text = argument.substr(std::min(end + 1, argument.size()));
  while (!text.empty()) {
    ++line.number;
    const std::size_t length = std::min(text.find('\n'), text.size());
    auto words = words_of(text.substr(0, length));
    if (!words) line.refuse("a quote is not closed");
    text.remove_prefix(std::min(length + 1, text.size()));
    line.words = *std::move(words);
    if (!line.words.empty()) take(line);
  }
}

}  // namespace stfs
