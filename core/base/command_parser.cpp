#include "core/base/command.h"
#include "core/base/error.h"
#include "core/base/text.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

// CLI11 takes "[a]" for a list of its own; a byte before it keeps it from that.
constexpr char kGuard = '\x01';

// What was given for a row.
struct Given {
  OptionRow row;
  bool flag = false;
  std::vector<std::string> values = {};
};

// CLI11 alone takes "-1" for the largest number, and larger ones too.
std::string begins_with_a_number(const std::string& size) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
  return error == std::errc() ? "" : "not a number of bytes";
}

void add_check(CLI::Option& option, const OptionRow& row) {
  if (row.value == Value::kChoice) {
    std::vector<std::string> choices;
    for (const std::string_view choice : parts_of(row.argument, '|')) choices.emplace_back(choice);
    option.check(CLI::IsMember(std::move(choices)).description(""));
  } else if (row.value == Value::kNumber) {
    option.check(
        CLI::Range(static_cast<int>(row.least), static_cast<int>(row.most)).description(""));
  } else if (row.value == Value::kSize) {
    option.transform(CLI::AsSizeValue(false).description(""));
    option.transform(
        CLI::Validator([](std::string& size) { return begins_with_a_number(size); }, ""));
  }
}

void add_row(CLI::App& app, Given& given, bool required) {
  const OptionRow& row = given.row;
  std::string name(row.flags);
  if (row.argument.empty() && !is_operand(row)) {
    app.add_flag(name, given.flag);
    return;
  }
  if (name.ends_with("...")) name.resize(name.size() - 3);
  CLI::Option* option = nullptr;
  if (may_repeat(row)) {
    option = app.add_option(name, given.values);
    if (!is_operand(row)) option->allow_extra_args(false);
  } else {
    option = app.add_option(name, [&given](const CLI::results_t& results) {
      given.values = results;
      return true;
    });
    const bool is_number = row.value == Value::kNumber || row.value == Value::kSize;
    option->type_name(is_number ? "UINT" : "TEXT");
  }
  add_check(*option, row);
  if (required) option->required();
}

void add_rows_of(CLI::App& app, const CommandRow& command, const VerbRow& verb,
                 std::deque<Given>& given) {
  for (const OptionRow& row : command.options) {
    const auto required = is_required(row, verb);
    if (!required || row.value == Value::kCommand) continue;
    given.push_back({row});
    add_row(app, given.back(), *required);
  }
}

// All rows of a command without verbs; which of its forms is meant is for the program to say.
void add_forms(CLI::App& app, const CommandRow& command, std::deque<Given>& given,
               std::vector<std::string>& operands) {
  app.add_option("operands", operands);
  for (const OptionRow& row : command.options) {
    if (is_operand(row)) continue;
    given.push_back({row});
    add_row(app, given.back(), false);
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
  std::deque<Given> given;
  CLI::App app("", std::string(command.name));
  app.set_version_flag("-V,--version", "");
  if (command.has_verbs) {
    app.require_subcommand(1);
    for (const VerbRow& verb : command.verbs) {
      add_rows_of(*app.add_subcommand(std::string(verb.name)), command, verb, given);
    }
  } else {
    add_forms(app, command, given, parsed.operands);
  }

  for (std::string& word : words) {
    if (word.starts_with('[')) word.insert(0, 1, kGuard);
  }
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    parsed.wish = Parsed::Wish::kHelp;
  } catch (const CLI::CallForVersion&) {
    parsed.wish = Parsed::Wish::kVersion;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::ranges::replace(text, '\n', ' ');
    throw Error(ErrorCode::kUsage, "",
                printable(text) + " (try " + std::string(command.name) + " --help)");
  }
  parsed.verb = chosen_verb(command, app);
  if (parsed.wish != Parsed::Wish::kRun) return parsed;
  for (std::string& operand : parsed.operands) operand = unguarded(std::move(operand));
  for (const Given& one : given) {
    if (one.flag) one.row.set(arguments, "");
    for (const std::string& value : one.values) one.row.set(arguments, unguarded(value));
  }
  return parsed;
}

}  // namespace stfs
