#include "core/base/command.h"
#include "core/base/error.h"
#include "core/base/text.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <utility>

namespace stfs {
namespace {

// CLI11 reads "[a]" as a list. This byte before the bracket prevents that.
constexpr char kGuard = '\x01';

// A row and the values that were typed for it.
struct TypedOption {
  OptionRow row;
  bool flag = false;
  std::vector<std::string> values = {};
};

// CLI11's size check wraps "-1" and numbers over 64 bits. Returns the error, or "".
std::string size_error(const std::string& size) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
  return error == std::errc() ? "" : "not a number of bytes";
}

void add_check(CLI::Option& option, const OptionRow& row) {
  if (row.value == Value::kChoice) {
    std::vector<std::string> choices;
    for (const std::string_view choice : parts_of(row.argument, '|')) choices.emplace_back(choice);
    option.check(CLI::IsMember(choices).description(""));
  } else if (row.value == Value::kNumber) {
    option.check(
        CLI::Range(static_cast<int>(row.least), static_cast<int>(row.most)).description(""));
  } else if (row.value == Value::kSize) {
    option.transform(CLI::AsSizeValue(false).description(""));
    option.transform(CLI::Validator([](std::string& size) { return size_error(size); }, ""));
  }
}

void add_row(CLI::App& app, TypedOption& typed, bool required) {
  const OptionRow& row = typed.row;
  std::string name(row.flags);
  if (row.argument.empty() && !is_operand(row)) {
    app.add_flag(name, typed.flag);
    return;
  }
  if (name.ends_with("...")) name.resize(name.size() - 3);
  CLI::Option* option = nullptr;
  if (may_repeat(row)) {
    option = app.add_option(name, typed.values);
    if (!is_operand(row)) option->allow_extra_args(false);
  } else {
    option = app.add_option(name, [&typed](const CLI::results_t& results) {
      typed.values = results;
      return true;
    });
    const bool is_number = row.value == Value::kNumber || row.value == Value::kSize;
    option->type_name(is_number ? "UINT" : "TEXT");
  }
  add_check(*option, row);
  if (required) option->required();
}

void add_rows_of(CLI::App& app, const CommandRow& command, const VerbRow& verb,
                 std::deque<TypedOption>& typed) {
  for (const OptionRow& row : command.options) {
    const auto required = is_required(row, verb);
    if (!required || row.value == Value::kCommand) continue;
    typed.push_back({row});
    add_row(app, typed.back(), *required);
  }
}

// Adds all rows of a command without verbs. The program chooses the form from the parsed values.
void add_forms(CLI::App& app, const CommandRow& command, std::deque<TypedOption>& typed,
               std::vector<std::string>& operands) {
  app.add_option("operands", operands);
  for (const OptionRow& row : command.options) {
    if (is_operand(row)) continue;
    typed.push_back({row});
    add_row(app, typed.back(), false);
  }
}

std::string unguarded(std::string word) {
  if (word.starts_with(kGuard)) word.erase(0, 1);
  return word;
}

const VerbRow* chosen_verb(const CommandRow& command, const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty()) return nullptr;
  return &*std::ranges::find(command.verbs, std::string_view(chosen.back()->get_name()),
                             &VerbRow::name);
}

}  // namespace

Parsed parse_command(const CommandRow& command, std::vector<std::string> words, void* arguments) {
  Parsed parsed;
  std::deque<TypedOption> typed;  // CLI11 keeps references: elements must not move
  CLI::App app("", std::string(command.name));
  app.set_version_flag("-V,--version", "");
  if (command.has_verbs) {
    app.require_subcommand(1);
    for (const VerbRow& verb : command.verbs) {
      add_rows_of(*app.add_subcommand(std::string(verb.name)), command, verb, typed);
    }
  } else {
    add_forms(app, command, typed, parsed.operands);
  }

  for (std::string& word : words) {
    if (word.starts_with('[')) word.insert(0, 1, kGuard);
  }
  std::ranges::reverse(words);  // CLI11 takes the last word first
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    parsed.action = Parsed::Action::kHelp;
  } catch (const CLI::CallForVersion&) {
    parsed.action = Parsed::Action::kVersion;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::ranges::replace(text, '\n', ' ');
    throw Error(ErrorCode::kUsage, "",
                printable(text) + " (try " + std::string(command.name) + " --help)");
  }
  parsed.verb = chosen_verb(command, app);
  if (parsed.action != Parsed::Action::kRun) return parsed;
  for (std::string& operand : parsed.operands) operand = unguarded(std::move(operand));
  for (const TypedOption& option : typed) {
    if (option.flag) option.row.set(arguments, "");
    for (const std::string& value : option.values) option.row.set(arguments, unguarded(value));
  }
  return parsed;
}

}  // namespace stfs
