#include "core/base/pattern.h"

#include <re2/re2.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kMaxExpression = 4096;    // bytes
constexpr std::int64_t kMaxMemory = 128 << 10;  // bytes of RE2's program and states
constexpr std::uint64_t kMaxWork = 1 << 17;     // of a match: less than a second

// Removes the first token from `text`: an escape, a class, or a character. Returns it in the syntax
// of RE2. Returns "" if parse() refuses the token.
std::string take_token(std::string_view& text) {
  std::size_t length = std::min<std::size_t>(text[0] == '\\' ? 2 : 1, text.size());
  if (text[0] == '[') {
    length = text.starts_with("[^") ? 2 : 1;
    // A class may begin with a "]" that does not end it.
    do {
      length += text.substr(length).starts_with('\\') ? 2 : 1;
    } while (length < text.size() && text[length] != ']');
    length = std::min(length + 1, text.size());
  }
  const std::string_view token = text.substr(0, length);
  text.remove_prefix(length);
  if (token == "\\Z") return "\\z";
  if (token == "{" && text.starts_with(',')) return "{0";  // RE2 takes {,2} as a text
  const bool is_special_group = token == "(" && text.starts_with('?');
  if (is_special_group && !text.starts_with("?:") && !text.starts_with("?P<")) return "";
  return std::string(token);
}

std::shared_ptr<const re2::RE2> compiled(const std::string& text) {
  re2::RE2::Options options(re2::RE2::Latin1);
  options.set_log_errors(false);
  options.set_max_mem(kMaxMemory);
  options.set_never_capture(true);
  auto expression = std::make_shared<const re2::RE2>(text, options);
  return expression->ok() ? expression : nullptr;
}

}  // namespace

std::optional<NamePattern> NamePattern::parse(std::string_view expression) {
  struct Part {
    char look;  // '=' or '!', or 0 for a part that does not look ahead
    std::string text;
  };
  if (expression.size() > kMaxExpression) return std::nullopt;
  std::vector<Part> parts{{0, ""}};  // the beginning, the look-aheads, and the rest
  bool has_alternatives = false;
  for (int depth = 0; !expression.empty();) {
    if (depth == 0 && (expression.starts_with("(?=") || expression.starts_with("(?!"))) {
      if (parts.size() > 1 && parts.back().text.empty()) parts.pop_back();
      parts.push_back({expression[2], "(?:"});
      expression.remove_prefix(3);
      depth = 1;
      continue;
    }
    const std::string token = take_token(expression);
    if (token.empty()) return std::nullopt;
    depth += token == "(" ? 1 : token == ")" ? -1 : 0;
    has_alternatives = has_alternatives || (depth == 0 && token == "|");
    parts.back().text += token;
    if (depth == 0 && parts.back().look != 0) parts.push_back({0, ""});
  }
  if (parts.size() > 1 && has_alternatives) return std::nullopt;
  NamePattern out;
  for (const auto& [look, text] : parts) {
    const bool is_first = &text == &parts.front().text;
    const bool is_last = &text == &parts.back().text;
    if (is_first && !is_last && (text.empty() || text == "^")) continue;
    Expression part = compiled(text);
    if (!part || (look == 0 && !is_first && !is_last)) return std::nullopt;
    out.size_ += static_cast<std::size_t>(part->ProgramSize());
    if (look != 0) {
      out.looks_.push_back({std::move(part), look == '='});
    } else {
      (is_last ? out.rest_ : out.begin_) = std::move(part);
    }
  }
  return out;
}

std::optional<bool> NamePattern::matches(std::string_view name, std::uint64_t& work) const {
  constexpr std::size_t kMaxName = 1 << 16;
  const auto is_ascii = [](char c) { return c >= ' ' && c <= '~'; };
  if (name.size() > kMaxName || !std::ranges::all_of(name, is_ascii)) return std::nullopt;
  // A call takes at most some nanoseconds for each byte and step, and mostly much less.
  const std::uint64_t of_call = (name.size() / 64 + 1) * (size_ / 16 + 1);
  const std::uint64_t limit = work + kMaxWork;
  const re2::StringPiece text(name.data(), name.size());
  for (std::size_t at = 0; at <= (begin_ ? name.size() : 0); ++at) {
    if ((work += of_call) > limit) return std::nullopt;
    const auto matches_from = [&](const Expression& part) {
      return part->Match(text, at, name.size(), re2::RE2::ANCHOR_START, nullptr, 0);
    };
    if (begin_ && !begin_->Match(text, 0, at, re2::RE2::ANCHOR_BOTH, nullptr, 0)) continue;
    work += of_call * looks_.size();
    const bool looks_right = std::ranges::all_of(
        looks_, [&](const Look& look) { return matches_from(look.expression) == look.is_wanted; });
    if (looks_right && matches_from(rest_)) return true;
  }
  return false;
}

}  // namespace stfs
