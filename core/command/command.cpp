#include "core/command/command.h"

#include <algorithm>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kWidth = 80;

constexpr OptionRow kHelpRow{.flags = "-h,--help",
                             .help = "print this help",
                             .man = "Print a summary of the usage; after a verb, of that verb."};
constexpr OptionRow kVersionRow{.flags = "-V,--version",
                                .help = "print the version",
                                .man = "Print the version, and what it was built with."};

// Returns the left column of a row in the help: "-j, --jobs N", "threads=N", "GLOB...".
std::string left_side(const OptionRow& row) {
  std::string text;
  for (const std::string_view flag : parts_of(row.flags, ',')) {
    text += (text.empty() ? "" : ", ") + std::string(flag);
  }
  if (row.argument.empty() || row.argument == row.flags) return text;
  return text + (row.flags.starts_with('-') ? " " : "=") + std::string(row.argument);
}

// Adds lines with two columns: a name and its meaning. The meaning is wrapped at kWidth columns.
void add_columns(std::string& out,
                 const std::vector<std::pair<std::string, std::string_view>>& lines) {
  constexpr std::size_t kMaxName = 26;  // the meaning of a longer name begins on the next line
  std::size_t widest = 0;
  for (const auto& line : lines) {
    if (line.first.size() <= kMaxName) widest = std::max(widest, line.first.size());
  }
  const std::size_t indent = 2 + widest + 2;
  for (const auto& [name, meaning] : lines) {
    out += "  " + name;
    std::size_t column = 2 + name.size();
    bool is_first_word = true;  // the next word is the first in its line
    for (const std::string_view word : parts_of(meaning, ' ')) {
      if (column > kWidth - 1 - word.size() || (is_first_word && column + 2 > indent)) {
        out += '\n';
        column = 0;
        is_first_word = true;
      }
      const std::size_t spaces = is_first_word ? indent - column : 1;
      out.append(spaces, ' ').append(word);
      column += spaces + word.size();
      is_first_word = false;
    }
    out += '\n';
  }
}

void add_rows(std::string& out, std::string_view heading, std::span<const OptionRow> rows,
              bool operands) {
  std::vector<std::pair<std::string, std::string_view>> lines;
  for (const OptionRow& row : rows) {
    if (is_operand(row) == operands) lines.emplace_back(left_side(row), row.help);
  }
  if (lines.empty()) return;
  out.append(heading);
  add_columns(out, lines);
}

// Returns a text such as " list [OPTIONS] SOURCE [GLOB...]". For a command without verbs, names
// each option, because it has only a few.
std::string arguments_usage(const CommandRow& command, const VerbRow& verb) {
  std::string text = command.has_verbs ? " " + std::string(verb.name) + " [OPTIONS]" : "";
  std::string operands;
  for (const OptionRow& row : command.options) {
    const auto required = is_required(row, verb);
    if (!required) continue;
    if (command.has_verbs && !is_operand(row)) continue;
    std::string word(row.flags.substr(0, row.flags.find(',')));
    const bool has_value = !row.argument.empty() && row.argument != row.flags;
    if (has_value) word += " " + std::string(row.argument);
    if (!*required) word = "[" + word + "]";
    (is_operand(row) ? operands : text) += " " + word;
  }
  return text + operands;
}

}  // namespace

bool is_operand(const OptionRow& row) {
  return !row.flags.starts_with('-') || row.value == Value::kCommand;
}

bool may_repeat(const OptionRow& row) {
  return row.flags.ends_with("...") || row.argument.find("...") != std::string_view::npos;
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<bool> is_required(const OptionRow& row, const VerbRow& verb) {
  for (const std::string_view word : parts_of(row.verbs, ' ')) {
    if (word == verb.name) return false;
    if (word.ends_with('!') && word.substr(0, word.size() - 1) == verb.name) return true;
  }
  return std::nullopt;
}

std::vector<OptionRow> rows_of(const CommandRow& command, const VerbRow* verb) {
  std::vector<OptionRow> rows;
  for (const OptionRow& row : command.options) {
    if (verb != nullptr ? is_required(row, *verb).has_value() : !command.has_verbs) {
      rows.push_back(row);
    }
  }
  rows.push_back(kHelpRow);
  if (verb == nullptr) rows.push_back(kVersionRow);
  return rows;
}

std::vector<OptionRow> options_of(const CommandRow& command) {
  std::vector<OptionRow> rows;
  for (const OptionRow& row : command.options) {
    const bool is_documented = std::ranges::any_of(command.verbs, [&](const VerbRow& verb) {
      return is_required(row, verb) && !verb.help.empty();
    });
    if (is_documented && !is_operand(row)) rows.push_back(row);
  }
  rows.push_back(kHelpRow);
  rows.push_back(kVersionRow);
  return rows;
}

std::string usage_of(const CommandRow& command, const VerbRow& verb) {
  return std::string(command.name) + arguments_usage(command, verb);
}

std::string help_text(const CommandRow& command, const VerbRow* verb) {
  std::string out = std::string(verb != nullptr ? verb->help : command.help) + "\n";
  const std::string name(command.name);
  if (verb != nullptr) {
    out += "\nUsage: " + usage_of(command, *verb) + "\n";
  } else if (command.has_verbs) {
    out += "\nUsage: " + name + " VERB [OPTIONS] ...\n\nVerbs:\n";
    std::vector<std::pair<std::string, std::string_view>> verbs;
    for (const VerbRow& row : command.verbs) {
      if (!row.help.empty()) verbs.emplace_back(row.name, row.help);
    }
    add_columns(out, verbs);
    out += "\n" + name + " VERB --help prints the options of a verb.\n";
  } else {
    const char* label = "\nUsage: ";
    for (const VerbRow& form : command.verbs) {
      out += label + usage_of(command, form) + "\n";
      label = "       ";
    }
  }
  const std::vector<OptionRow> rows = rows_of(command, verb);
  add_rows(out, "\n", rows, true);
  add_rows(out, "\nOptions:\n", rows, false);
  if (verb == nullptr) {
    add_rows(out, "\nOptions for -o:\n", command.list, true);
    if (!command.notes.empty()) out += "\n" + std::string(command.notes);
  }
  return out;
}

}  // namespace stfs
