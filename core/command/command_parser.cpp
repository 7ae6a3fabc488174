#include "core/base/error.h"
#include "core/base/text.h"
#include "core/command/command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace stfs {
namespace {

[[noreturn]] void refuse(std::string_view place, std::string_view rule) {
  throw Error(ErrorCode::kUsage, place, rule);
}

// Returns "a, b and c" if the last separator is " and ".
std::string joined(const std::vector<std::string_view>& words, std::string_view last_separator) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? last_separator : ", ";
    text += words[i];
  }
  return text;
}

// Reads a number in decimal digits, or in hexadecimal digits after "0x", and removes it from
// `text`. Returns nullopt if there is none or if it exceeds 64 bits.
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

// Converts a number of bytes with a unit, such as "512MiB", "5g" or "16 K", to decimal digits. All
// units are powers of 1024. Returns nullopt if the text is not such a number.
std::optional<std::string> bytes_of(std::string_view text) {
  auto bytes = take_number(text);
  if (!bytes) return std::nullopt;
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  const std::string unit = lower_case(text);
  constexpr std::string_view kPrefixes = "kmgtpe";
  const std::size_t prefix = unit.empty() ? std::string::npos : kPrefixes.find(unit.front());
  const bool has_prefix = prefix != std::string::npos;
  const std::string_view rest = std::string_view(unit).substr(has_prefix ? 1 : 0);
  const bool is_unit = rest.empty() || rest == "b" || (has_prefix && (rest == "i" || rest == "ib"));
  if (!is_unit) return std::nullopt;
  for (std::size_t i = 0; has_prefix && i <= prefix; ++i) {
    if (__builtin_mul_overflow(*bytes, 1024U, &*bytes)) return std::nullopt;
  }
  return std::to_string(*bytes);
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

// An option or operand that the user has typed. `flag` is the name that was used. `value` is
// nullopt if the option is a flag, or if its value is missing.
struct Typed {
  OptionRow row;
  std::string_view flag;
  std::optional<std::string> value;
};

// Splits the words into options and operands, and returns the options that no row has. "--" ends
// the options. A value follows "=" or the letter of an option, or it is the next word. A word such
// as "-1" is an operand.
std::vector<std::string> split(const std::vector<OptionRow>& rows,
                               const std::vector<std::string>& words, std::vector<Typed>& typed,
                               std::vector<std::string>& operands) {
  std::vector<std::string> unknown;
  // Adds an option without a value to `typed`.
  const auto add = [&](std::string_view name) {
    for (const OptionRow& row : rows) {
      for (const std::string_view flag : parts_of(row.flags, ',')) {
        if (is_operand(row) || !same_option(flag, name)) continue;
        typed.push_back({row, flag, std::nullopt});
        return true;
      }
    }
    return false;
  };
  std::size_t next = 0;
  const auto take_value = [&](std::string_view rest) {
    if (!rest.empty()) {
      typed.back().value = rest;
    } else if (next < words.size()) {
      typed.back().value = words[next++];
    }
  };
  while (next < words.size()) {
    const std::string& word = words[next++];
    if (word == "--") {
      operands.insert(operands.end(), words.begin() + static_cast<std::ptrdiff_t>(next),
                      words.end());
      break;
    }
    const bool is_number = word.size() > 1 && word[1] >= '0' && word[1] <= '9';
    if (word.size() < 2 || word.front() != '-' || is_number) {
      operands.push_back(word);
      continue;
    }
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      if (!add(std::string_view(word).substr(0, equals))) {
        unknown.push_back(word);
      } else if (equals != std::string::npos) {
        typed.back().value = word.substr(equals + 1);
      } else if (!typed.back().row.argument.empty()) {
        take_value("");
      }
      continue;
    }
    // The letters of flags, perhaps followed by the letter of an option and its value.
    for (std::size_t at = 1; at < word.size(); ++at) {
      if (!add(std::string("-") + word[at])) {
        unknown.push_back("-" + word.substr(at));
        break;
      }
      if (typed.back().row.argument.empty()) continue;
      take_value(std::string_view(word).substr(at + 1));
      break;
    }
  }
  return unknown;
}

std::string where_to_look(const CommandRow& command, const VerbRow* verb) {
  const bool has_help = verb != nullptr && !verb->help.empty();
  return " (try " + std::string(command.name) + (has_help ? " " + std::string(verb->name) : "") +
         " --help)";
}

bool names_a_place(const std::string& word) {
  return ::access(word.c_str(), F_OK) == 0 || word.find("://") != std::string::npos;
}

const VerbRow* find_verb(const CommandRow& command, const std::string& word) {
  const auto verb = std::ranges::find(command.verbs, std::string_view(word), &VerbRow::name);
  if (verb != command.verbs.end()) return &*verb;
  const std::vector<std::string_view> verbs = documented_verbs(command);
  if (names_a_place(word)) {
    refuse("", in_quotes(word) + " is a path, but a verb must come before it: " +
                   joined(verbs, " or ") + where_to_look(command, nullptr));
  }
  refuse("", "unknown verb " + in_quotes(word) + did_you_mean(similar_word(word, verbs)) +
                 ": the verbs are " + joined(verbs, " and ") + where_to_look(command, nullptr));
}

[[noreturn]] void refuse_option(const CommandRow& command, const VerbRow* chosen,
                                const std::string& word) {
  const bool is_long = word.starts_with("--");
  std::size_t end = is_long ? word.find('=') : 2;
  // Do not cut a UTF-8 character.
  while (!is_long && end < word.size() && (word[end] & 0xc0) == 0x80) ++end;
  const std::string flag = word.substr(0, end);
  std::vector<std::string_view> of_others, flags;
  for (const VerbRow& verb : command.verbs) {
    if (verb.help.empty() || !command.has_verbs) continue;
    for (const OptionRow& row : command.options) {
      const bool is_it = std::ranges::any_of(parts_of(row.flags, ','),
                                             [&](auto name) { return same_option(name, flag); });
      if (is_it && !is_operand(row) && is_required(row, verb)) of_others.push_back(verb.name);
    }
  }
  if (chosen == nullptr && !of_others.empty()) {
    refuse(flag, "an option of a verb: it belongs after the verb, as in " +
                     std::string(command.name) + " VERB " + printable(flag));
  }
  if (!of_others.empty()) {
    refuse(flag, "an option of " + joined(of_others, " and ") + ", not of " +
                     std::string(chosen->name) + where_to_look(command, chosen));
  }
  for (const OptionRow& row : rows_of(command, chosen)) {
    if (!is_operand(row)) flags.push_back(parts_of(row.flags, ',').back());
  }
  const std::string in = !is_long && flag != word ? " in " + printable(word) : "";
  const std::string_view similar = similar_word(is_long ? flag : "-" + word, flags);
  refuse("", "unknown option " + printable(flag) + in + did_you_mean(similar) +
                 where_to_look(command, chosen));
}

std::string checked(const OptionRow& row, std::string_view name, const std::string& value) {
  try {
    return checked_value(row, value);
  } catch (const Error& error) {
    refuse(std::string(name) + " " + (is_operand(row) || value.empty() ? in_quotes(value) : value),
           error.message());
  }
}

void check_options(std::vector<Typed>& typed) {
  for (std::size_t i = 0; i < typed.size(); ++i) {
    const OptionRow& row = typed[i].row;
    const std::string flag(typed[i].flag);
    std::optional<std::string>& value = typed[i].value;
    if (row.argument.empty()) {
      if (value) refuse(flag + "=" + *value, "a value is not expected: " + flag);
      value = "";
      continue;
    }
    const bool is_again = std::ranges::any_of(
        std::span(typed).first(i), [&](const Typed& one) { return one.row.flags == row.flags; });
    if (is_again && !may_repeat(row)) refuse(flag, "given twice: give it once");
    if (!value) {
      refuse(flag, "a value is expected after it: " + flag + " " + std::string(row.argument));
    }
    if (value->empty() && (row.value == Value::kText || row.value == Value::kEditLine)) {
      refuse(flag + " \"\"", "a value is expected: " + flag + " " + std::string(row.argument));
    }
    value = checked(row, flag, *value);
  }
}

// Adds the operands to `typed`, in the order of the verb's rows.
void assign_operands(const CommandRow& command, const VerbRow& verb,
                     const std::vector<std::string>& operands, std::vector<Typed>& typed) {
  std::vector<std::string_view> missing;
  std::size_t next = 0;
  for (const OptionRow& row : rows_of(command, &verb)) {
    if (!is_operand(row) || row.value == Value::kCommand) continue;
    const std::size_t left = operands.size() - next;
    if (left == 0 && *is_required(row, verb)) missing.push_back(row.flags);
    const std::size_t count = may_repeat(row) ? left : std::min<std::size_t>(left, 1);
    for (std::size_t i = 0; i < count; ++i) {
      typed.push_back({row, row.flags, checked(row, row.flags, operands[next++])});
    }
  }
  const std::string usage = " (usage: " + usage_of(command, verb) + ")";
  if (!missing.empty()) {
    refuse(verb.name,
           joined(missing, " and ") + (missing.size() == 1 ? " is" : " are") + " expected" + usage);
  }
  if (next < operands.size()) {
    refuse(verb.name, in_quotes(operands[next]) + ": one operand too many" + usage);
  }
}

void require_options(const CommandRow& command, const VerbRow& verb,
                     const std::vector<Typed>& typed) {
  for (const OptionRow& row : rows_of(command, &verb)) {
    if (is_operand(row) || !is_required(row, verb).value_or(false)) continue;
    const bool is_given =
        std::ranges::any_of(typed, [&](const Typed& one) { return one.row.flags == row.flags; });
    if (is_given) continue;
    refuse(verb.name, std::string(parts_of(row.flags, ',').back()) + " " +
                          std::string(row.argument) + " is expected" +
                          where_to_look(command, &verb));
  }
}

}  // namespace

bool same_option(std::string_view a, std::string_view b) {
  // Names of 0.2.0 that were replaced. They are accepted until the release after the next one.
  const auto current_name = [](std::string_view name) -> std::string {
    if (name == "cache") return "page-cache";
    if (name == "memory" || name == "--memory")
      return name == "memory" ? "delta-memory" : "--delta-memory";
    return with_dashes(name);
  };
  return current_name(a) == current_name(b);
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
    // At least one letter must be kept.
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
    refuse("", (choices.size() == 1 ? "expected " : "expected one of ") + joined(choices, ", "));
  }
  if (row.value == Value::kNumber) {
    std::string_view text = value;
    const auto number = take_number(text);
    if (number && text.empty() && *number >= row.least && *number <= row.most) {
      return std::to_string(*number);
    }
    refuse("", "expected a number from " + std::to_string(row.least) + " to " +
                   std::to_string(row.most));
  }
  if (row.value == Value::kSize) {
    if (const auto bytes = bytes_of(value)) return *bytes;
    refuse("", "expected a number of bytes, such as 1000, 512MiB or 16G");
  }
  const bool is_path = row.value == Value::kSource || row.value == Value::kPath ||
                       row.value == Value::kTensorPath || row.value == Value::kMountpoint;
  if (is_path && value.empty()) refuse("", "expected a name, but this one is empty");
  return value;
}

void check_presence(std::string_view key, std::string_view argument, bool has_value) {
  if (argument.empty() && has_value) refuse("", "a value is not expected: " + std::string(key));
  if (!argument.empty() && !has_value) {
    refuse("", "a value is expected: " + std::string(key) + "=" + std::string(argument));
  }
}

bool set_word(std::span<const OptionRow> rows, const std::string& word, void* to) {
  const std::size_t equals = word.find('=');
  const std::string_view key = std::string_view(word).substr(0, equals);
  const auto row = std::ranges::find_if(rows, [&](const OptionRow& one) {
    return one.set != nullptr && same_option(one.flags, key);
  });
  if (row == rows.end()) return false;
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  const bool is_empty = value.empty() && row->value == Value::kText && !row->argument.empty();
  check_presence(row->flags, row->argument, equals != std::string::npos && !is_empty);
  row->set(to, checked_value(*row, value));
  return true;
}

Parsed parse_command(const CommandRow& command, std::vector<std::string> words, void* arguments) {
  Parsed parsed;
  if (command.has_verbs && !words.empty() && !words.front().starts_with('-')) {
    std::string word = words.front();
    const bool is_verb = std::ranges::find(command.verbs, std::string_view(word), &VerbRow::name) !=
                         command.verbs.end();
    // A word with a dot or a slash is a place too, because no verb has one.
    const bool is_place = names_a_place(word) || word.find_first_of("./") != std::string::npos;
    if (!is_verb && !command.verb_of_path.empty() && is_place) {
      word = command.verb_of_path;
    } else {
      words.erase(words.begin());
    }
    parsed.verb = find_verb(command, word);
  }
  std::vector<Typed> typed;
  const std::vector<std::string> unknown =
      split(rows_of(command, parsed.verb), words, typed, parsed.operands);
  for (const Typed& option : typed) {
    if (option.row.set != nullptr) continue;
    const bool is_help = option.row.flags.ends_with("help");
    parsed.action = is_help ? Parsed::Action::kHelp : Parsed::Action::kVersion;
    return parsed;
  }
  if (!unknown.empty()) refuse_option(command, parsed.verb, unknown.front());
  check_options(typed);
  if (command.has_verbs) {
    if (parsed.verb == nullptr) {
      refuse("", "a verb is expected: " + joined(documented_verbs(command), ", ") +
                     where_to_look(command, nullptr));
    }
    assign_operands(command, *parsed.verb, parsed.operands, typed);
    parsed.operands.clear();
    require_options(command, *parsed.verb, typed);
  }
  for (const Typed& one : typed) one.row.set(arguments, *one.value);
  return parsed;
}

}  // namespace stfs
