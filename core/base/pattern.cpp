#include "core/base/pattern.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kMaxExpression = 4096;    // bytes
constexpr std::int64_t kMaxMemory = 128 << 10;  // bytes of RE2's program and states
constexpr std::uint64_t kMaxWork = 1 << 17;     // limit of one match, less than a second

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
  // Refuse a class with "[:", which RE2 might read as a POSIX class.
  if (token.front() == '[' && token.find("[:", 1) != std::string_view::npos) return "";
  if (token == "{") {
    // Perhaps a repetition. RE2 would match {,2} and {01} as plain text.
    std::string_view rest = text;
    const auto take_digits = [&rest] {
      const std::size_t end = std::min(rest.find_first_not_of("0123456789"), rest.size());
      const std::string_view digits = rest.substr(0, end);
      rest.remove_prefix(end);
      return digits;
    };
    const std::string_view least = take_digits();
    const bool has_most = rest.starts_with(',');
    if (has_most) rest.remove_prefix(1);
    const std::string_view most = has_most ? take_digits() : std::string_view();
    const bool is_repetition = rest.starts_with('}');
    const auto has_zeros = [](std::string_view digits) {
      return digits.size() > 1 && digits.front() == '0';
    };
    if (is_repetition && (has_zeros(least) || has_zeros(most))) return "";
    if (is_repetition && has_most && least.empty()) return "{0";
  }
  const bool is_special_group = token == "(" && text.starts_with('?');
  if (is_special_group && !text.starts_with("?:") && !text.starts_with("?P<")) return "";
  return std::string(token);
}

[[noreturn]] void refuse(const std::string& rule) { throw std::invalid_argument(rule); }

// Removes the text before the next delimiter, and the delimiter, from `rest`. Returns the text,
// without the backslashes before delimiters.
std::string take_field(std::string_view& rest, char delimiter) {
  std::string field;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == delimiter) {
      rest.remove_prefix(i + 1);
      return field;
    }
    if (rest[i] == '\\' && i + 1 < rest.size()) {
      if (rest[i + 1] != delimiter) field += '\\';
      ++i;
    }
    field += rest[i];
  }
  refuse("expected s" + std::string(1, delimiter) + "REGEX" + delimiter + "NEW" + delimiter +
         ", with all three delimiters");
}

}  // namespace

std::optional<NamePattern> NamePattern::parse(std::string_view expression) {
  struct Part {
    char look;  // '=' or '!' for a lookahead, else 0
    std::string text;
  };
  // RE2 matches bytes here (Latin1), so a quantifier after "é" would repeat only its last byte.
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (expression.size() > kMaxExpression || !std::ranges::all_of(expression, is_ascii)) {
    return std::nullopt;
  }
  std::vector<Part> parts{{0, ""}};  // the beginning, the lookaheads, and the rest
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
  re2::RE2::Options options(re2::RE2::Latin1);
  options.set_log_errors(false);
  options.set_max_mem(kMaxMemory);
  options.set_never_capture(true);
  NamePattern out;
  for (const auto& [look, text] : parts) {
    const bool is_first = &text == &parts.front().text;
    const bool is_last = &text == &parts.back().text;
    if (is_first && !is_last && (text.empty() || text == "^")) continue;
    auto part = std::make_shared<const re2::RE2>(text, options);
    if (!part->ok() || (look == 0 && !is_first && !is_last)) return std::nullopt;
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
  // A call of RE2 takes at most a few nanoseconds per byte of the name and instruction of the
  // program, and usually much less.
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

Substitution::Substitution(std::string_view text) {
  if (text.size() < 2 || text[0] != 's' || std::ispunct(static_cast<unsigned char>(text[1])) == 0 ||
      text[1] == '\\') {
    refuse("expected s/REGEX/NEW/");
  }
  const char delimiter = text[1];
  std::string_view rest = text.substr(2);
  const std::string regex = take_field(rest, delimiter);
  const std::string replacement = take_field(rest, delimiter);
  if (!rest.empty() && rest != "g") refuse("only \"g\" may follow the last delimiter");
  is_global_ = !rest.empty();
  if (regex.empty()) refuse("the expression is empty");
  re2::RE2::Options options;
  options.set_log_errors(false);
  expression_ = std::make_shared<const re2::RE2>(regex, options);
  if (!expression_->ok()) refuse("not a valid RE2 expression: " + expression_->error());
  for (std::size_t i = 0; i < replacement.size(); ++i) {
    if (replacement[i] == '&') {
      rewrite_ += "\\0";
    } else if (replacement[i] != '\\') {
      rewrite_ += replacement[i];
    } else {
      const char next = ++i < replacement.size() ? replacement[i] : '\0';
      if (next != '\\' && next != '&' && (next < '0' || next > '9')) {
        refuse("a backslash in NEW must precede a digit, & or a backslash");
      }
      if (next != '&') rewrite_ += '\\';
      rewrite_ += next;
    }
  }
  const int group = re2::RE2::MaxSubmatch(rewrite_);
  if (group > expression_->NumberOfCapturingGroups()) {
    refuse("the expression has no group " + std::to_string(group));
  }
}

std::optional<std::string> Substitution::apply(std::string_view name) const {
  std::array<re2::StringPiece, 10> groups;  // \0 to \9
  const int count = re2::RE2::MaxSubmatch(rewrite_) + 1;
  const re2::StringPiece text(name.data(), name.size());
  const auto references = static_cast<std::size_t>(std::ranges::count(rewrite_, '\\'));
  std::string result;
  std::size_t copied = 0;  // bytes of `name`
  bool matches = false;
  const auto reserve = [&](std::size_t bytes) {
    // Without a limit, many "&" could make a long name too large for the memory.
    if (result.size() + bytes <= kMaxName) return;
    refuse("a name would have more than " + std::to_string(kMaxName) + " bytes");
  };
  for (std::size_t from = 0;
       from <= name.size() &&
       expression_->Match(text, from, name.size(), re2::RE2::UNANCHORED, groups.data(), count);) {
    const auto begin = static_cast<std::size_t>(groups[0].data() - name.data());
    const std::size_t end = begin + groups[0].size();
    from = end > begin ? end : end + 1;
    // RE2 also finds an empty match inside a UTF-8 character.
    const bool is_inside = end == begin && begin < name.size() &&
                           (static_cast<unsigned char>(name[begin]) & 0xC0) == 0x80;
    // Like sed, ignore an empty match right after the previous match.
    if (is_inside || (matches && end == copied)) continue;
    reserve(begin - copied + rewrite_.size() + references * (end - begin));
    result += name.substr(copied, begin - copied);
    expression_->Rewrite(&result, rewrite_, groups.data(), count);
    matches = true;
    copied = end;
    if (!is_global_) break;
  }
  if (!matches) return std::nullopt;
  reserve(name.size() - copied);
  result += name.substr(copied);
  return result;
}

}  // namespace stfs
