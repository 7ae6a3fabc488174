// A command line as a table: a row for each option, verb and operand. What a command takes, its
// help, its man page and its completions all come from the rows.
//
// Thread safety: rows are constants; functions may be called from any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace stfs {

// What a value is: how it is checked, and what a shell offers for it.
enum class Value {
  kText,
  kChoice,      // one of the words in `argument`: "name|size|offset"
  kNumber,      // from `least` to `most`
  kSize,        // bytes, also "16G" or "512MiB"
  kSource,      // a checkpoint: a .safetensors file, an index, a directory
  kPath,        // any file
  kMountpoint,  // of a mounted checkpoint
  kDevice,      // of stfs-gpu
  kList,        // rows of CommandRow::list, separated by commas
  kCommand,     // the words behind "--", which the program takes off before it parses
};

// Stores a value that was checked, "" for a flag, in the arguments of the command. Throws Error.
using Setter = void (*)(void* arguments, const std::string& value);

template <class Arguments, class T>
Arguments owner_of(T Arguments::*);

// The setter of a member: a flag becomes true, a number and a text are replaced, a vector grows.
template <auto kMember>
void set(void* arguments, const std::string& value) {
  auto& member = static_cast<decltype(owner_of(kMember))*>(arguments)->*kMember;
  using T = std::remove_reference_t<decltype(member)>;
  if constexpr (std::is_same_v<T, bool>) {
    member = true;
  } else if constexpr (std::is_integral_v<T>) {
    member = static_cast<T>(std::stoull(value, nullptr, 0));
  } else if constexpr (requires { member.push_back(value); }) {
    member.push_back(value);
  } else {
    member = value;
  }
}

struct OptionRow {
  // "-j,--jobs"; an operand: "SOURCE", "GLOB..."; an option of a list: "threads".
  std::string_view flags = {};
  std::string_view verbs = {};  // that take it: "list extract!", where "!" says that it is required
  std::string_view argument = {};  // "N"; "": none; with "...": may be given again
  Value value = Value::kText;
  Setter set = nullptr;
  std::string_view help = {};  // one line
  std::string_view man = {};   // sentences, with `literal` and <argument>
  unsigned least = 0;
  unsigned most = 0;
};

struct VerbRow {
  std::string_view name = {};
  std::string_view help = {};  // one line; "": not for people
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
  std::string_view notes = {};  // the end of the help
  // Whether a verb is typed. If not, verbs are the forms of the command line, the usual one first,
  // and the flag that one of them requires tells them apart.
  bool has_verbs = true;
  std::span<const VerbRow> verbs = {};
  std::span<const OptionRow> options = {};
  std::span<const OptionRow> list = {};  // what the value of the row kList is made of
};

bool is_operand(const OptionRow& row);
bool may_repeat(const OptionRow& row);
std::vector<std::string_view> parts_of(std::string_view text,
                                       char separator);  // without empty parts

// Whether a verb requires a row; nothing: the verb does not take it.
std::optional<bool> is_required(const OptionRow& row, const VerbRow& verb);
// The rows of a verb, or of the command itself, with --help and --version.
std::vector<OptionRow> rows_of(const CommandRow& command, const VerbRow* verb);
// All rows of options that people may use, with --help and --version; operands are none.
std::vector<OptionRow> options_of(const CommandRow& command);

// What --help prints, for 80 columns.
std::string help_text(const CommandRow& command, const VerbRow* verb = nullptr);

struct Parsed {
  enum class Wish { kRun, kHelp, kVersion };

  Wish wish = Wish::kRun;
  const VerbRow* verb = nullptr;      // null: none was typed
  std::vector<std::string> operands;  // of a command without verbs
};
// Parses the words behind the program's name and stores their values. Throws Error kUsage.
Parsed parse_command(const CommandRow& command, std::vector<std::string> words, void* arguments);

}  // namespace stfs
