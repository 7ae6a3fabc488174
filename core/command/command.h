// A command line as a table with one row per option, operand and verb. The parser, the help, the
// man page and the completions all use these rows.
//
// Thread safety: the functions may be called from any thread. Lifetime: rows are constants; their
// texts are string literals.
#pragma once

#include "core/base/option_row.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct VerbRow {
  std::string_view name = {};
  std::string_view help = {};  // one line; "" hides the verb from help, man page and completions
  int (*run)(const void* arguments) = nullptr;
};
template <class Arguments>
Arguments arguments_of(int (*)(const Arguments&));
template <auto kVerb>
int run_verb(const void* arguments) {
  return kVerb(*static_cast<const decltype(arguments_of(kVerb))*>(arguments));
}

struct CommandRow {
  std::string_view name = {};
  std::string_view help = {};   // one line
  std::string_view notes = {};  // printed at the end of the help
  // True if the first word is a verb. False if `verbs` are the forms of one command line. The usual
  // form is then the first, and each other form has a flag that only this form requires.
  bool has_verbs = true;
  // The verb that is assumed if a path or a URL is in the place of a verb; "" if there is none.
  std::string_view verb_of_path = {};
  std::span<const VerbRow> verbs = {};
  std::span<const OptionRow> options = {};
  std::span<const OptionRow> list = {};             // the options in the value of a kList row
  std::vector<std::string> (*devices)() = nullptr;  // returns the values of a kDevice row
};

bool is_operand(const OptionRow& row);  // a kCommand row counts as an operand
bool may_repeat(const OptionRow& row);

// Splits a text and drops empty parts.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

// Returns the most similar of the `words`: one that differs by a few letters from `typed`, or else
// one that begins with it. `-` and `_` count as equal. Returns "" if no word is similar.
std::string_view similar_word(std::string_view typed, std::span<const std::string_view> words);
// Returns true if two names of options are equal when `-` and `_` count as equal.
bool same_option(std::string_view a, std::string_view b);
// Returns " (did you mean list?)", or "" if `word` is empty.
std::string did_you_mean(std::string_view word);

// Checks a value that a user has typed for a row, and returns it in the form that the row's setter
// expects: a number or a size becomes decimal digits. Refuses an empty path. Throws Error kUsage
// with only the rule: "one of name, size is expected".
std::string checked_value(const OptionRow& row, const std::string& value);

// Checks a word of a list, "key" or "key=value", and calls the setter of its row with `to`. Returns
// false if no row with a setter has the key. Throws Error kUsage with only the rule.
bool set_word(std::span<const OptionRow> rows, const std::string& word, void* to);
// Throws Error kUsage if an option needs a value (`argument` is not "") but has none, or has a
// value but needs none.
void check_presence(std::string_view key, std::string_view argument, bool has_value);

// Returns true if `verb` requires `row`, and false if the row is optional. Returns nullopt if the
// verb does not have the row.
std::optional<bool> is_required(const OptionRow& row, const VerbRow& verb);
// Returns the rows of a verb and --help. If `verb` is null, returns --help, --version and, for a
// command without verbs, all its rows.
std::vector<OptionRow> rows_of(const CommandRow& command, const VerbRow* verb);
// Returns the options, without operands, of all verbs that are not hidden, and --help and
// --version.
std::vector<OptionRow> options_of(const CommandRow& command);

// Returns a text such as "stfs-info show [OPTIONS] SOURCE TENSOR".
std::string usage_of(const CommandRow& command, const VerbRow& verb);

// Returns the text that --help prints, 80 columns wide.
std::string help_text(const CommandRow& command, const VerbRow* verb = nullptr);

struct Parsed {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  const VerbRow* verb = nullptr;      // null if the command line has no verb
  std::vector<std::string> operands;  // only for a command without verbs
};
// Parses the words after the program's name and stores their values in `arguments`, which must have
// the type that the setters of the rows expect. If the action is kHelp or kVersion, stores nothing.
// Throws Error kUsage, and any Error of a setter.
Parsed parse_command(const CommandRow& command, std::vector<std::string> words, void* arguments);

}  // namespace stfs
