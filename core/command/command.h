// A command line as a table with a row for each option, operand and verb. The parser, the help, the
// man page and the completions all read these rows.
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
  // True when the first word is a verb. False when `verbs` are the forms of one command line, the
  // usual form first; each other form has a flag that it alone requires.
  bool has_verbs = true;
  std::string_view verb_of_path = {};  // stands before a path or a URL in place of a verb; "": none
  std::span<const VerbRow> verbs = {};
  std::span<const OptionRow> options = {};
  std::span<const OptionRow> list = {};             // the options in the value of a kList row
  std::vector<std::string> (*devices)() = nullptr;  // returns the values of a kDevice row
};

bool is_operand(const OptionRow& row);
bool may_repeat(const OptionRow& row);

// Splits a text; leaves out empty parts.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

// The first of the `words` that is most like `typed`: it begins with `typed`, or differs by a few
// letters. `-` and `_` are alike. Empty when none is like it.
std::string_view similar_word(std::string_view typed, std::span<const std::string_view> words);
// Whether two names of options are equal when `-` and `_` are alike.
bool same_option(std::string_view a, std::string_view b);
// " (did you mean list?)"; "" for an empty word.
std::string did_you_mean(std::string_view word);

// A value that was typed for a row, in the form that its setter expects: a number and a size become
// decimal digits; a path is not empty. Throws Error kUsage with the rule alone: "one of name, size
// is expected".
std::string checked_value(const OptionRow& row, const std::string& value);

// Sets what a word of a list means, "key" or "key=value"; `to` is the argument of the setters.
// False: no row with a setter has the key. Throws Error kUsage with the rule alone.
bool set_word(std::span<const OptionRow> rows, const std::string& word, void* to);
// Throws Error kUsage unless an option with `argument` has a value, and one without has none.
void check_presence(std::string_view key, std::string_view argument, bool has_value);

// Whether `verb` requires `row`; nullopt when it does not take it.
std::optional<bool> is_required(const OptionRow& row, const VerbRow& verb);
// The rows that a verb takes, and --help. With a null verb: --help, --version and, of a command
// without verbs, all its rows.
std::vector<OptionRow> rows_of(const CommandRow& command, const VerbRow* verb);
// The options of all verbs that are not hidden, with --help and --version; no operands.
std::vector<OptionRow> options_of(const CommandRow& command);

// "stfs-info show [OPTIONS] SOURCE TENSOR".
std::string usage_of(const CommandRow& command, const VerbRow& verb);

// The text that --help prints, 80 columns wide.
std::string help_text(const CommandRow& command, const VerbRow* verb = nullptr);

struct Parsed {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  const VerbRow* verb = nullptr;      // null without a verb on the command line
  std::vector<std::string> operands;  // of a command without verbs
};
// Parses the words after the program's name and stores their values in `arguments`, an object of
// the type that the setters of the rows expect. Throws Error kUsage, and any Error of a setter.
Parsed parse_command(const CommandRow& command, std::vector<std::string> words, void* arguments);

}  // namespace stfs
