// A command line as a table with a row for each option, operand and verb. The parser, the help, the
// man page and the completions all read these rows.
//
// Thread safety: the functions may be called from any thread. Lifetime: rows are constants; their
// texts are string literals.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace stfs {

// The kind of a value. It decides how the parser checks a value and how a shell completes it.
enum class Value {
  kText,
  kChoice,      // one of the words in `argument`: "name|size|offset"
  kNumber,      // from `least` to `most`
  kSize,        // bytes: "1000", "16G", "512MiB"
  kSource,      // a checkpoint: a .safetensors file, an index, a directory
  kPath,        // any file
  kTensor,      // the name of a tensor in the checkpoint that is the first operand
  kTensorPath,  // any file, or SOURCE::NAME
  kEditLine,    // a line of edits of that checkpoint
  kMountpoint,  // of a mounted checkpoint
  kDevice,      // a device of stfs-gpu: "cuda:0"
  kList,        // rows of CommandRow::list, separated by commas
  kCommand,     // the words after "--"; the program removes them before it calls parse_command
};

// Stores a value that passed its check in the arguments of the command; "" stands for a flag.
// Throws Error.
using Setter = void (*)(void* arguments, const std::string& value);

template <class Arguments, class T>
Arguments owner_of(T Arguments::*);

// The setter of a member, or of the member kInner of a member: sets a bool to true, replaces a
// number or a text, appends to a vector.
template <auto kMember, auto... kInner>
void set(void* arguments, const std::string& value) {
  auto& outer = static_cast<decltype(owner_of(kMember))*>(arguments)->*kMember;
  auto& member = (outer.*....*kInner);
  using T = std::remove_reference_t<decltype(member)>;
  if constexpr (std::is_same_v<T, bool>) {
    member = true;
  } else if constexpr (std::is_integral_v<T>) {
    member = static_cast<T>(std::stoull(value, nullptr, 0));
  } else if constexpr (requires { member.push_back(value); }) {
    member.push_back(value);
  } else if constexpr (std::is_assignable_v<T&, const std::string&>) {
    member = value;
  } else {
    member = std::stoull(value);
  }
}

struct OptionRow {
  // An option "-j,--jobs"; an operand "SOURCE" or "GLOB..."; an option of a list "threads". An
  // operand of a few words has them here and as its `argument`: "list|prune|verify".
  std::string_view flags = {};
  std::string_view verbs = {};     // verbs that take the row; "list extract!": extract requires it
  std::string_view argument = {};  // "N"; "" for a flag; "KEY..." may be given several times
  Value value = Value::kText;
  Setter set = nullptr;
  std::string_view help = {};  // one line
  std::string_view man = {};   // sentences, with `literal` and <argument>
  unsigned least = 0;          // of a kNumber, as is `most`
  unsigned most = 0;
};

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
