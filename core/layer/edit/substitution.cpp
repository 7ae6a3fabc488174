#include "core/layer/edit/substitution.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace stfs {
namespace {

constexpr int kGroups = 10;  // \0 to \9

[[noreturn]] void refuse(const std::string& rule) { throw std::invalid_argument(rule); }

// Whether a byte of UTF-8 goes on with the character of the byte before it.
bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Takes what stands before the next delimiter off `rest`. A backslash before a delimiter is
// dropped, any other pair of a backslash and a character stays.
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
  refuse("s" + std::string(1, delimiter) + "REGEX" + delimiter + "NEW" + delimiter +
         " is expected, with all three delimiters");
}

}  // namespace

Substitution::Substitution(std::string_view text) {
  if (text.size() < 2 || text[0] != 's' || std::ispunct(static_cast<unsigned char>(text[1])) == 0 ||
      text[1] == '\\') {
    refuse("s/REGEX/NEW/ is expected");
  }
  const char delimiter = text[1];
  std::string_view rest = text.substr(2);
  const std::string regex = take_field(rest, delimiter);
  const std::string replacement = take_field(rest, delimiter);
  if (!rest.empty() && rest != "g") refuse("behind the last delimiter g alone may stand");
  is_global_ = !rest.empty();
  if (regex.empty()) refuse("the expression is empty");
  re2::RE2::Options options;
  options.set_log_errors(false);
  expression_ = std::make_unique<const re2::RE2>(regex, options);
  if (!expression_->ok()) refuse("the expression is not one of RE2: " + expression_->error());

  for (std::size_t i = 0; i < replacement.size(); ++i) {
    const char c = replacement[i];
    if (c == '&') {
      pieces_.push_back({"", 0});
    } else if (c != '\\') {
      pieces_.push_back({std::string(1, c), -1});
    } else {
      const char next = i + 1 < replacement.size() ? replacement[i + 1] : '\0';
      ++i;
      if (next >= '0' && next <= '9') {
        pieces_.push_back({"", next - '0'});
      } else if (next == '\\' || next == '&') {
        pieces_.push_back({std::string(1, next), -1});
      } else {
        refuse("a backslash in NEW stands before a digit, & or a backslash");
      }
    }
    if (const int group = pieces_.back().group; group > expression_->NumberOfCapturingGroups()) {
      refuse("the expression has no group " + std::to_string(group));
    }
  }
}

Substitution::Substitution(Substitution&&) noexcept = default;
Substitution& Substitution::operator=(Substitution&&) noexcept = default;
Substitution::~Substitution() = default;

std::optional<std::string> Substitution::apply(std::string_view name) const {
  std::array<re2::StringPiece, kGroups> groups;
  const re2::StringPiece text(name.data(), name.size());
  std::string result;
  std::size_t copied = 0;  // of `name`
  bool matches = false;
  const auto add = [&](std::string_view part) {
    // A & for each letter of a long name would need more memory than there is.
    if (part.size() > kMostName - std::min(result.size(), kMostName)) {
      refuse("a name would have more than " + std::to_string(kMostName) + " bytes");
    }
    result += part;
  };
  for (std::size_t from = 0; from <= name.size();) {
    if (!expression_->Match(text, from, name.size(), re2::RE2::UNANCHORED, groups.data(),
                            expression_->NumberOfCapturingGroups() < kGroups
                                ? expression_->NumberOfCapturingGroups() + 1
                                : kGroups)) {
      break;
    }
    const auto begin = static_cast<std::size_t>(groups[0].data() - name.data());
    const std::size_t end = begin + groups[0].size();
    if (end == begin && begin < name.size() && is_inside_character(name[begin])) {
      from = begin + 1;  // RE2 finds an empty text there too
      continue;
    }
    // An empty match right behind the last one is none, as in sed.
    if (!matches || end > copied || begin > copied) {
      add(name.substr(copied, begin - copied));
      for (const Piece& piece : pieces_) {
        if (piece.group < 0) {
          add(piece.text);
        } else if (const re2::StringPiece& group = groups[static_cast<std::size_t>(piece.group)];
                   group.data() != nullptr) {
          add({group.data(), group.size()});
        }
      }
      matches = true;
      copied = end;
    }
    if (!is_global_) break;
    from = end > begin ? end : end + 1;
  }
  if (!matches) return std::nullopt;
  add(name.substr(copied));
  return result;
}

}  // namespace stfs
