#include "core/layer/edit/edit_lines.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kOfCommandLine = "-e";

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// The words of a line; nullopt for a quote that is not closed.
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

std::vector<EditLine> edit_lines(std::string_view argument) {
  const std::size_t end = argument.find('\n');
  const std::string file(argument.substr(0, end));
  const bool is_of_command_line = last_component(file) == kOfCommandLine;
  std::vector<EditLine> lines;
  std::string_view text = argument.substr(std::min(end + 1, argument.size()));
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    EditLine line{.place = is_of_command_line ? std::string(kOfCommandLine) : public_name(file),
                  .number = number,
                  .words = {},
                  .directory = parent_name(file)};
    auto words = words_of(text.substr(0, length));
    if (!words) line.refuse("a quote is not closed");
    text.remove_prefix(std::min(length + 1, text.size()));
    if (words->empty()) continue;
    line.words = *std::move(words);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace stfs
