#include "core/base/command.h"
#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace stfs {
namespace {

[[noreturn]] void refuse(std::string_view place, std::string_view rule) {
  throw Error(ErrorCode::kUsage, place, rule);
}

// "a", "a and b", "a, b and c"
std::string enumeration(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

std::string list_of(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

// Reads decimal digits, or hexadecimal ones after "0x", and removes them from `text`.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  const bool is_hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  if (is_hexadecimal) text.remove_prefix(2);
  std::uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, is_hexadecimal ? 16 : 10);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// The power of 1024 of a unit: 0 of "" and "B", 1 of "K", "KB" and "KiB".
std::optional<unsigned> power_of(std::string_view unit) {
  std::string letters;
  for (const char c : unit) {
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (letters.empty() || letters == "b") return 0;
  const std::size_t power = std::string_view("kmgtpe").find(letters[0]);
  const std::string_view rest = std::string_view(letters).substr(1);
  const bool is_unit = rest.empty() || rest == "b" || rest == "i" || rest == "ib";
  if (power == std::string_view::npos || !is_unit) return std::nullopt;
  return static_cast<unsigned>(power) + 1;
}

std::optional<std::uint64_t> bytes_of(std::string_view text) {
  const auto number = take_number(text);
  while (text.starts_with(' ')) text.remove_prefix(1);
  const auto power = power_of(text);
  if (!number || !power) return std::nullopt;
  const unsigned shift = 10 * *power;
  if (*number > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
  return *number << shift;
}

std::vector<std::string_view> documented_verbs(const CommandRow& command) {
  std::vector<std::string_view> verbs;
  for (const VerbRow& verb : command.verbs) {
    if (!verb.help.empty()) verbs.push_back(verb.name);
  }
  return verbs;
}

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

// The words of one command line, from left to right.
class CommandLine {
 public:
  CommandLine(const CommandRow& command, std::vector<std::string> words)
      : command_(command), words_(std::move(words)), rows_(rows_of(command, nullptr)) {}

  Parsed parse(void* arguments);

 private:
  // A value that was typed for a row; "" for a flag.
  struct Typed {
    OptionRow row;
    std::string value;
  };

  bool asks_for_text() const { return parsed_.action != Parsed::Action::kRun; }
  void take_word(std::string word);
  void take_verb(const std::string& word);
  void take_long(const std::string& word);
  void take_letters(const std::string& word);
  void take_option(const OptionRow& row, const std::string& flag, std::optional<std::string> value);
  void assign_operands();
  void require_options() const;
  const OptionRow* find(std::string_view flag) const;
  [[noreturn]] void refuse_option(const std::string& flag, const std::string& word) const;
  std::string where_to_look() const;

  const CommandRow& command_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;         // in `words_`
  std::vector<OptionRow> rows_;  // of the verb, once there is one
  std::vector<Typed> typed_;     // options
  bool only_operands_ = false;   // after "--"
  Parsed parsed_;
};

std::string CommandLine::where_to_look() const {
  std::string text = " (try " + std::string(command_.name);
  const bool has_help = parsed_.verb != nullptr && !parsed_.verb->help.empty();
  if (has_help) text += " " + std::string(parsed_.verb->name);
  return text + " --help)";
}

const OptionRow* CommandLine::find(std::string_view flag) const {
  const auto has_flag = [&](const OptionRow& row) {
    return !is_operand(row) && std::ranges::any_of(parts_of(row.flags, ','), [&](auto one) {
      return flag.starts_with("--") ? same_option(one, flag) : one == flag;
    });
  };
  const auto row = std::ranges::find_if(rows_, has_flag);
  return row == rows_.end() ? nullptr : &*row;
}

// `word` is what was typed, with the flag in it.
void CommandLine::refuse_option(const std::string& flag, const std::string& word) const {
  std::vector<std::string_view> of_others, flags;
  for (const VerbRow& verb : command_.verbs) {
    if (verb.help.empty() || !command_.has_verbs) continue;
    for (const OptionRow& row : command_.options) {
      const std::vector<std::string_view> names = parts_of(row.flags, ',');
      const bool is_it = std::ranges::any_of(names, [&](auto one) {
        return one == flag || (flag.starts_with("--") && same_option(one, flag));
      });
      if (is_it && !is_operand(row) && is_required(row, verb)) of_others.push_back(verb.name);
    }
  }
  if (parsed_.verb == nullptr && !of_others.empty()) {
    refuse(flag, "an option of a verb: it belongs after the verb, as in " +
                     std::string(command_.name) + " " + std::string(of_others.front()) + " " +
                     printable(flag));
  }
  if (!of_others.empty()) {
    refuse(flag, "an option of " + enumeration(of_others) + ", not of " +
                     std::string(parsed_.verb->name) + where_to_look());
  }
  for (const OptionRow& row : rows_) {
    if (is_operand(row)) continue;
    for (const std::string_view one : parts_of(row.flags, ',')) {
      if (one.starts_with("--")) flags.push_back(one);
    }
  }
  const bool is_letter = !flag.starts_with("--");
  const std::string in = is_letter && word.size() > 2 ? " in " + printable(word) : "";
  const std::string typed = is_letter ? "-" + word : flag;
  refuse("", "unknown option " + printable(flag) + in + did_you_mean(similar_word(typed, flags)) +
                 where_to_look());
}

void CommandLine::take_option(const OptionRow& row, const std::string& flag,
                              std::optional<std::string> value) {
  if (row.set == nullptr) {
    parsed_.action = row.flags.ends_with("help") ? Parsed::Action::kHelp : Parsed::Action::kVersion;
    return;
  }
  if (row.argument.empty()) {
    if (value) refuse(flag + "=" + *value, "a value is not expected: " + flag);
    typed_.push_back({row, ""});
    return;
  }
  const bool is_again =
      std::ranges::any_of(typed_, [&](const Typed& typed) { return typed.row.flags == row.flags; });
  if (is_again && !may_repeat(row)) refuse(flag, "given twice: give it once");
  if (!value) {
    if (next_ == words_.size()) {
      refuse(flag, "a value is expected after it: " + flag + " " + std::string(row.argument));
    }
    value = words_[next_++];
  }
  try {
    typed_.push_back({row, checked_value(row, *value)});
  } catch (const Error& error) {
    refuse(flag + " " + *value, error.message());
  }
}

// "--jobs", "--jobs=4"
void CommandLine::take_long(const std::string& word) {
  const std::size_t equals = word.find('=');
  const std::string flag = word.substr(0, equals);
  const OptionRow* row = find(flag);
  if (row == nullptr) refuse_option(flag, word);
  std::optional<std::string> value;
  if (equals != std::string::npos) value = word.substr(equals + 1);
  take_option(*row, std::string(parts_of(row->flags, ',').back()), std::move(value));
}

// "-j4", "-uz": a letter that takes a value takes the rest of the word, or the next word.
void CommandLine::take_letters(const std::string& word) {
  for (std::size_t i = 1; i < word.size() && !asks_for_text(); ++i) {
    const std::string flag = {'-', word[i]};
    const OptionRow* row = find(flag);
    if (row == nullptr) refuse_option(flag, word);
    const bool takes_rest = !row->argument.empty() && i + 1 < word.size();
    take_option(*row, flag, takes_rest ? std::optional(word.substr(i + 1)) : std::nullopt);
    if (takes_rest) return;
  }
}

void CommandLine::take_verb(const std::string& word) {
  const auto verb = std::ranges::find(command_.verbs, std::string_view(word), &VerbRow::name);
  if (verb == command_.verbs.end()) {
    const std::vector<std::string_view> verbs = documented_verbs(command_);
    refuse("", "unknown verb " + in_quotes(word) + did_you_mean(similar_word(word, verbs)) +
                   ": the verbs are " + enumeration(verbs) + where_to_look());
  }
  parsed_.verb = &*verb;
  rows_ = rows_of(command_, parsed_.verb);
}

void CommandLine::take_word(std::string word) {
  const bool is_number = word.size() > 1 && std::isdigit(static_cast<unsigned char>(word[1])) != 0;
  if (only_operands_ || word.size() < 2 || word[0] != '-' || is_number) {
    if (command_.has_verbs && parsed_.verb == nullptr) {
      take_verb(word);
    } else {
      parsed_.operands.push_back(std::move(word));
    }
  } else if (word == "--") {
    only_operands_ = true;
  } else if (word[1] == '-') {
    take_long(word);
  } else {
    take_letters(word);
  }
}

// Gives the operands to the rows of the verb, in their order.
void CommandLine::assign_operands() {
  std::vector<std::string_view> missing;
  std::size_t next = 0;
  for (const OptionRow& row : rows_) {
    if (!is_operand(row) || row.value == Value::kCommand) continue;
    const std::size_t left = parsed_.operands.size() - next;
    if (left == 0 && *is_required(row, *parsed_.verb)) missing.push_back(row.flags);
    const std::size_t count = may_repeat(row) ? left : std::min<std::size_t>(left, 1);
    for (std::size_t i = 0; i < count; ++i) typed_.push_back({row, parsed_.operands[next++]});
  }
  const std::string usage = " (usage: " + usage_of(command_, *parsed_.verb) + ")";
  if (!missing.empty()) {
    refuse(parsed_.verb->name,
           enumeration(missing) + (missing.size() == 1 ? " is" : " are") + " expected" + usage);
  }
  if (next < parsed_.operands.size()) {
    refuse(parsed_.verb->name,
           in_quotes(parsed_.operands[next]) + ": one operand too many" + usage);
  }
  parsed_.operands.clear();
}

void CommandLine::require_options() const {
  for (const OptionRow& row : rows_) {
    if (is_operand(row) || !is_required(row, *parsed_.verb).value_or(false)) continue;
    const bool is_given = std::ranges::any_of(
        typed_, [&](const Typed& typed) { return typed.row.flags == row.flags; });
    if (is_given) continue;
    const std::string_view flag = parts_of(row.flags, ',').back();
    refuse(parsed_.verb->name,
           std::string(flag) + " " + std::string(row.argument) + " is expected" + where_to_look());
  }
}

Parsed CommandLine::parse(void* arguments) {
  while (next_ < words_.size() && !asks_for_text()) take_word(words_[next_++]);
  if (asks_for_text()) return std::move(parsed_);
  if (command_.has_verbs) {
    if (parsed_.verb == nullptr) {
      refuse("", "a verb is expected: " + list_of(documented_verbs(command_)) + where_to_look());
    }
    assign_operands();
    require_options();
  }
  for (const Typed& typed : typed_) typed.row.set(arguments, typed.value);
  return std::move(parsed_);
}

}  // namespace

bool same_option(std::string_view a, std::string_view b) {
  return with_dashes(a) == with_dashes(b);
}

std::string did_you_mean(std::string_view word) {
  return word.empty() ? "" : " (did you mean " + std::string(word) + "?)";
}

std::string_view similar_word(std::string_view typed, std::span<const std::string_view> words) {
  constexpr std::size_t kLongest = 64;  // no option is longer
  constexpr std::string_view kDashes = "-_";
  if (typed.size() > kLongest) return {};
  const std::size_t begin = std::min(typed.find_first_not_of(kDashes), typed.size());
  const std::size_t letters = typed.size() - begin;
  std::size_t least = std::min<std::size_t>((letters + 2) / 3, 3);  // edits
  const std::string plain = with_dashes(typed);
  std::string_view best, longer;
  for (const std::string_view word : words) {
    const std::string candidate = with_dashes(word);
    const std::size_t edits = edit_distance(plain, candidate, least);
    // Not every letter may change.
    if (edits < letters && (edits < least || (edits == least && best.empty()))) {
      least = edits;
      best = word;
    }
    if (longer.empty() && letters >= 2 && candidate.starts_with(plain)) longer = word;
  }
  return best.empty() ? longer : best;
}

std::string checked_value(const OptionRow& row, const std::string& value) {
  if (row.value == Value::kChoice) {
    const std::vector<std::string_view> choices = parts_of(row.argument, '|');
    if (std::ranges::find(choices, value) != choices.end()) return value;
    refuse("", (choices.size() == 1 ? "" : "one of ") + list_of(choices) + " is expected");
  }
  if (row.value == Value::kNumber) {
    std::string_view text = value;
    const auto number = take_number(text);
    if (number && text.empty() && *number >= row.least && *number <= row.most) {
      return std::to_string(*number);
    }
    refuse("", "a number from " + std::to_string(row.least) + " to " + std::to_string(row.most) +
                   " is expected");
  }
  if (row.value == Value::kSize) {
    if (const auto bytes = bytes_of(value)) return std::to_string(*bytes);
    refuse("", "a number of bytes is expected, such as 1000, 512MiB or 16G");
  }
  return value;
}

Parsed parse_command(const CommandRow& command, std::vector<std::string> words, void* arguments) {
  return CommandLine(command, std::move(words)).parse(arguments);
}

}  // namespace stfs
