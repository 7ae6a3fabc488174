// Tests of the tables of the three command lines, and of the programs that print them.
#include "core/command/command.h"

#include "core/base/error.h"
#include "fs/fuse/options.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tools/gpu/client/verbs.h"
#include "tools/info/verbs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

struct Program {
  const CommandRow& command;
  std::string binary;
};

class Commands : public testing::TestWithParam<const char*> {
 protected:
  static Program program() {
    const std::string name = GetParam();
    if (name == "stfs") return {mount_command(), STFS_BINARY};
    if (name == "stfs-info") return {info_command(), STFS_INFO_BINARY};
    return {gpu::gpu_command(), STFS_GPU_BINARY};
  }

  // Returns the output of --help for a verb, or for the command itself if `verb` is null.
  static std::string help_of(const VerbRow* verb) {
    std::vector<std::string> words{program().binary};
    if (verb != nullptr) words.emplace_back(verb->name);
    words.emplace_back("--help");
    return run(words).out;
  }

  // Returns the verbs of the command line, and null for the command itself.
  static std::vector<const VerbRow*> helps() {
    std::vector<const VerbRow*> verbs{nullptr};
    if (!program().command.has_verbs) return verbs;
    for (const VerbRow& verb : program().command.verbs) {
      if (!verb.help.empty()) verbs.push_back(&verb);
    }
    return verbs;
  }
};

// Returns the words of a text that begin with a dash, without their arguments.
std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word && word.starts_with('-');) {
      flags.insert(word.substr(0, word.find(',')));
    }
  }
  return flags;
}

TEST_P(Commands, RowsHaveHelpAndKnownVerbs) {
  const CommandRow& command = program().command;
  std::vector<OptionRow> rows = options_of(command);
  rows.insert(rows.end(), command.list.begin(), command.list.end());
  for (const OptionRow& row : rows) {
    EXPECT_FALSE(row.help.empty()) << row.flags;
    EXPECT_TRUE(row.man.ends_with('.')) << row.flags;
    EXPECT_EQ(row.help.find('\n'), std::string_view::npos) << row.flags;
    EXPECT_TRUE(row.value != Value::kNumber || row.most > row.least) << row.flags;
  }
  for (const OptionRow& row : command.options) {
    for (std::string_view name : parts_of(row.verbs, ' ')) {
      if (name.ends_with('!')) name.remove_suffix(1);
      EXPECT_EQ(std::ranges::count(command.verbs, name, &VerbRow::name), 1)
          << row.flags << ": " << name;
    }
  }
}

TEST_P(Commands, HelpListsExactlyOptionsInTable) {
  for (const VerbRow* verb : helps()) {
    std::set<std::string> expected;
    for (const OptionRow& row : rows_of(program().command, verb)) {
      for (const std::string_view flag : parts_of(row.flags, ',')) {
        if (flag.starts_with('-')) expected.emplace(flag);
      }
    }
    EXPECT_EQ(flags_in(help_of(verb)), expected) << (verb != nullptr ? verb->name : "");
  }
}

TEST_P(Commands, HelpListsVerbsOperandsAndMountOptions) {
  const CommandRow& command = program().command;
  for (const VerbRow* verb : helps()) {
    const std::string help = help_of(verb);
    for (const OptionRow& row : rows_of(command, verb)) {
      EXPECT_NE(help.find(row.flags.substr(0, row.flags.find(','))), std::string::npos)
          << row.flags;
    }
    if (verb != nullptr) {
      EXPECT_NE(help_of(nullptr).find("\n  " + std::string(verb->name) + " "), std::string::npos)
          << verb->name;
    }
  }
  for (const OptionRow& row : command.list) {
    for (const std::string_view key : parts_of(row.flags, ',')) {
      EXPECT_NE(help_of(nullptr).find(key), std::string::npos) << key;
    }
  }
}

// The build replaces the marks. The descriptions of verbs are written by hand.
TEST_P(Commands, ManPageDescribesVerbsAndHasOptionMarks) {
  const CommandRow& command = program().command;
  const std::string page = read_file(std::filesystem::path(STFS_SOURCE_DIR) / "docs/man" /
                                     (std::string(command.name) + ".1.in"));
  for (const char* mark : {"@SYNOPSIS@", "@OPTIONS@"}) {
    EXPECT_NE(page.find("\n" + std::string(mark) + "\n"), std::string::npos) << mark;
  }
  EXPECT_EQ(page.find("\n@MOUNT_OPTIONS@\n") == std::string::npos, command.list.empty());
  std::set<std::string_view> described;
  for (const std::string_view line : parts_of(page, '\n')) {
    if (!line.starts_with(".It Cm ")) continue;
    for (const std::string_view word : parts_of(line, ' ')) described.insert(word);
  }
  for (const VerbRow* verb : helps()) {
    EXPECT_TRUE(verb == nullptr || described.contains(verb->name)) << verb->name;
  }
}

TEST_P(Commands, HelpHasAtMost80Columns) {
  for (const VerbRow* verb : helps()) {
    std::istringstream lines(help_of(verb));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

// Returns the message for a wrong command line.
std::string refusal(const CommandRow& command, const std::vector<std::string>& words) {
  Arguments info;
  gpu::GpuArguments gpu;
  Options mount;
  void* arguments = command.name == "stfs-info"  ? static_cast<void*>(&info)
                    : command.name == "stfs-gpu" ? static_cast<void*>(&gpu)
                                                 : static_cast<void*>(&mount);
  try {
    parse_command(command, words, arguments);
  } catch (const Error& error) {
    EXPECT_EQ(exit_status(error.code()), 2) << error.what();
    return error.what();
  }
  return "";
}

// Returns the words that a verb requires: its name, operands, options and their values, without
// the option `omitted`.
std::vector<std::string> required_words(const CommandRow& command, const VerbRow& verb,
                                        std::string_view omitted = "") {
  std::vector<std::string> words;
  if (command.has_verbs) words.emplace_back(verb.name);
  for (const OptionRow& row : command.options) {
    const bool is_wanted = is_required(row, verb).value_or(false) && row.flags != omitted &&
                           row.value != Value::kCommand;
    if (!is_wanted) continue;
    if (!is_operand(row)) words.emplace_back(parts_of(row.flags, ',').back());
    if (!row.argument.empty() || is_operand(row)) words.emplace_back("x");
  }
  return words;
}

// Checks that the message has the part, and no word of the parser library.
void expect_refusal(const CommandRow& command, std::vector<std::string> words,
                    const std::vector<std::string>& more, std::string_view part) {
  words.insert(words.end(), more.begin(), more.end());
  const std::string message = refusal(command, words);
  std::string line(command.name);
  for (const std::string& word : words) line += " " + word;
  EXPECT_NE(message.find(part), std::string::npos) << line << ": " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << line << ": " << message;
  for (const char* word : {"subcommand", "TEXT", "UINT", "argument was", "Could not"}) {
    EXPECT_EQ(message.find(word), std::string::npos) << line << ": " << message;
  }
}

TEST_P(Commands, ReportErrorsInEachOption) {
  const CommandRow& command = program().command;
  for (const VerbRow& verb : command.verbs) {
    for (const OptionRow& row : command.options) {
      if (is_operand(row) || !is_required(row, verb)) continue;
      const std::vector<std::string> words = required_words(command, verb, row.flags);
      for (const std::string_view name : parts_of(row.flags, ',')) {
        const std::string flag(name);
        if (row.argument.empty()) {
          if (!flag.starts_with("--")) continue;
          expect_refusal(command, words, {flag + "=yes"}, flag + "=yes: a value is not expected");
          continue;
        }
        expect_refusal(command, words, {flag}, flag + ": a value is expected after it: " + flag);
        if (row.value == Value::kChoice) {
          expect_refusal(command, words, {flag, "none"}, flag + " none: ");
          expect_refusal(command, words, {flag, "none"}, ": expected ");
        }
        if (row.value == Value::kNumber) {
          for (const std::string& number :
               {std::to_string(std::uint64_t{row.most} + 1), std::string("many"), std::string("-1"),
                std::string("99999999999999999999"), std::string("")}) {
            expect_refusal(command, words, {flag, number}, ": expected a number from ");
          }
        }
        if (row.value == Value::kSize) {
          for (const char* size : {"many", "-1", "16Q", "16E", "", " 5", "5.5G", "5 5",
                                   "18446744073709551616", "5{}"}) {
            expect_refusal(command, words, {flag, size}, "expected a number of bytes");
          }
        }
        const bool is_checked =
            row.value == Value::kChoice || row.value == Value::kNumber || row.value == Value::kSize;
        if (!may_repeat(row) && !is_checked) {
          expect_refusal(command, words, {flag, "x", flag, "x"}, flag + ": given twice");
        }
      }
      if (is_required(row, verb).value_or(false) && command.has_verbs) {
        expect_refusal(command, words, {}, " is expected (try ");
      }
    }
  }
}

TEST_P(Commands, ReportMissingAndSurplusOperands) {
  const CommandRow& command = program().command;
  for (const VerbRow& verb : command.verbs) {
    bool takes_any_number = !command.has_verbs;
    for (const OptionRow& row : command.options) {
      if (!is_operand(row) || !is_required(row, verb) || row.value == Value::kCommand) continue;
      takes_any_number = takes_any_number || may_repeat(row);
    }
    if (takes_any_number) continue;
    std::vector<std::string> words = required_words(command, verb);
    expect_refusal(command, words, {"x", "one more"}, "one operand too many (usage: ");
  }
  for (const VerbRow& verb : command.verbs) {
    if (!command.has_verbs) continue;
    for (const OptionRow& row : command.options) {
      if (!is_operand(row) || !is_required(row, verb).value_or(false)) continue;
      if (row.value == Value::kCommand) continue;
      expect_refusal(command, {std::string(verb.name)}, {}, row.flags);
      expect_refusal(command, {std::string(verb.name)}, {}, " expected (usage: ");
    }
  }
}

TEST_P(Commands, SuggestLongOptionsAndAcceptUnderscores) {
  const CommandRow& command = program().command;
  for (const VerbRow& verb : command.verbs) {
    if (verb.help.empty()) continue;
    for (const OptionRow& row : rows_of(command, command.has_verbs ? &verb : nullptr)) {
      const std::string flag(parts_of(row.flags, ',').back());
      if (is_operand(row) || !flag.starts_with("--") || flag.size() < 6) continue;
      std::vector<std::string> words;
      if (command.has_verbs) words.emplace_back(verb.name);
      std::string typed = flag;
      std::swap(typed[3], typed[4]);
      if (typed != flag) {
        expect_refusal(command, words, {typed}, "unknown option " + typed + " (did you mean --");
      }
      typed = flag;
      std::replace(typed.begin() + 2, typed.end(), '-', '_');
      words.push_back(typed);
      EXPECT_EQ(refusal(command, words).find("unknown"), std::string::npos) << typed;
    }
  }
}

TEST(InfoCommand, ListsVerbsIfVerbIsMissingOrUnknown) {
  const CommandRow& info = info_command();
  EXPECT_EQ(refusal(info, {}).find("a verb is expected: info, list, show, "), 0U)
      << refusal(info, {});
  const std::string similar = refusal(info, {"lst", "S"});
  EXPECT_EQ(similar.find("unknown verb \"lst\" (did you mean list?): the verbs are info, list, "),
            0U)
      << similar;
  EXPECT_EQ(refusal(info, {"model"}).find("did you mean"), std::string::npos);
}

TEST(InfoCommand, ReportsMisplacedOptions) {
  const CommandRow& info = info_command();
  EXPECT_NE(
      refusal(info, {"--json", "list", "S"}).find("after the verb, as in stfs-info VERB --json"),
      std::string::npos);
  EXPECT_EQ(refusal(gpu::gpu_command(), {"/dev/null"})
                .find("\"/dev/null\" is a path, but a verb must come before"),
            0U);
  EXPECT_EQ(refusal(info, {"list", "--slice", "S"}).find("--slice: an option of cat, not of list"),
            0U);
  EXPECT_NE(refusal(info, {"list", "-xyz", "S"}).find("unknown option -x in -xyz"),
            std::string::npos);
}

TEST(InfoCommand, AcceptsOptionsInAnyPosition) {
  Arguments arguments;
  parse_command(info_command(), {"stats", "-j4", "S", "--allow_missing", "--", "--json", "[a]"},
                &arguments);
  EXPECT_EQ(arguments.jobs, 4U);
  EXPECT_EQ(arguments.source, "S");
  EXPECT_TRUE(arguments.allow_missing);
  EXPECT_FALSE(arguments.json);
  EXPECT_EQ(arguments.globs, (std::vector<std::string>{"--json", "[a]"}));
  Arguments slice;
  parse_command(info_command(), {"cat", "S", "-1", "--slice", "-1"}, &slice);
  EXPECT_EQ(slice.slice, "-1");
  EXPECT_EQ(slice.tensor, "-1");
  EXPECT_EQ(parse_command(info_command(), {"list", "--help"}, &slice).action,
            Parsed::Action::kHelp);
}

// Such words come from unset variables in scripts, or from attempts to break the parser.
TEST(InfoCommand, ReportsErrorsInStrangeWords) {
  const CommandRow& info = info_command();
  const std::string many(100000, 'x');
  for (const auto& [words, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{""}, "unknown verb \"\": the verbs are "},
           {{"-"}, "a verb is expected: "},
           {{"--"}, "a verb is expected: "},
           {{"list", ""}, "SOURCE \"\": expected a name, but this one is empty"},
           {{"extract", "S", "-o", ""}, "-o \"\": expected a name, but this one is empty"},
           {{"list", "--"}, "list: SOURCE is expected (usage: "},
           {{"list", "-="}, "unknown option -= (try "},
           {{"list", "--="}, "unknown option -- (try "},
           {{"list", "-\u00e9"}, "unknown option -\u00e9 (try "},
           {{"list", "-\u00e9x"}, "unknown option -\u00e9 in -\u00e9x (try "},
           {{"list", "-\xff"}, "unknown option -\\xff (try "},
           {{"list", "--" + many}, "unknown option --xxx"},
           {{"list", "--json=", "S"}, "--json=: a value is not expected: --json"},
           {{"list", "--json={}", "S"}, "--json={}: a value is not expected: --json"},
           {{"cat", "S", "t", "--slice"}, "--slice: a value is expected after it: --slice EXPR"},
           {{"cat", "S", "t", "--slice=1", "--slice=2"}, "--slice: given twice"},
           {{"cat", "S", "t", "--slice="}, "--slice \"\": a value is expected: --slice EXPR"},
           {{"cat", "S", "t", "--slice", ""}, "--slice \"\": a value is expected: --slice EXPR"},
           {{"cat", "S", "t", "u", "--slice=1"}, "cat: \"u\": one operand too many"},
           {{"stats", "-j= 5", "S"}, "-j = 5: expected a number from "},
           {{"stats", "-j", " 5", "S"}, "-j  5: expected a number from "},
           {{"stats", "-j", "5 ", "S"}, "-j 5 : expected a number from "},
           {{"stats", "-j1", "--jobs=2", "S"}, "--jobs: given twice"},
       }) {
    const std::string found = refusal(info, words);
    EXPECT_EQ(found.find(message), 0U) << message << "\n" << found;
  }
}

TEST(InfoCommand, AcceptsStrangeValuesUnchanged) {
  for (const std::string value : {"-", "--", "-1", "--json", "[a,b]", "[[a],[b]]", "[]", "]", "[",
                                  "=", "a=b", "{}", "true", "%%", "\xff", " 5", "--slice=", "++"}) {
    Arguments next, equals;
    Options mount;
    parse_command(info_command(), {"cat", "S", "t", "--slice", value}, &next);
    parse_command(info_command(), {"cat", "S", "t", "--slice=" + value}, &equals);
    EXPECT_EQ(next.slice, value);
    EXPECT_EQ(equals.slice, value);
    EXPECT_EQ(parse_command(mount_command(), {"--", value}, &mount).operands,
              std::vector<std::string>{value});
    Arguments operand;
    parse_command(info_command(), {"cat", "--", "S", value}, &operand);
    EXPECT_EQ(operand.tensor, value);
    EXPECT_TRUE(operand.slice.empty());
  }
  Arguments number;
  parse_command(info_command(), {"stats", "-j", "010", "S"}, &number);
  EXPECT_EQ(number.jobs, 10U);
  parse_command(info_command(), {"stats", "--jobs=0x10", "S"}, &number);
  EXPECT_EQ(number.jobs, 16U);
}

// Users that ask for help do not know the command line yet.
TEST(InfoCommand, HelpFlagOverridesOtherErrors) {
  Arguments arguments;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"list", "--frobnicate", "--help"},
        {"stats", "-j", "0", "S", "-h"},
        {"cat", "a", "b", "c", "-h"}}) {
    const Parsed parsed = parse_command(info_command(), words, &arguments);
    EXPECT_EQ(parsed.action, Parsed::Action::kHelp);
    ASSERT_NE(parsed.verb, nullptr);
    EXPECT_EQ(parsed.verb->name, words.front());
  }
}

TEST(SimilarWord, ReturnsNearestWordOrCompletion) {
  const std::vector<std::string_view> words{"list", "show", "stats", "allow_missing"};
  EXPECT_EQ(similar_word("lst", words), "list");
  EXPECT_EQ(similar_word("lsit", words), "list");
  EXPECT_EQ(similar_word("allow-mising", words), "allow_missing");
  EXPECT_EQ(similar_word("allow", words), "allow_missing");
  EXPECT_EQ(similar_word("frobnicate", words), "");
  EXPECT_EQ(similar_word("", words), "");
  EXPECT_EQ(similar_word("x", words), "");
  EXPECT_EQ(similar_word(std::string(100000, 'l'), words), "");
}

TEST(GpuCommand, ParsesSizesInAllNotations) {
  for (const auto& [text, bytes] :
       {std::pair("16", 16U), std::pair("0x10", 16U), std::pair("0x1B", 27U), std::pair("010", 10U),
        std::pair("2K", 2048U), std::pair("2 kb", 2048U), std::pair("1MiB ", 1048576U)}) {
    gpu::GpuArguments holder, plan;
    parse_command(gpu::gpu_command(), {"holder", "--memory-limit", text}, &holder);
    parse_command(gpu::gpu_command(), {"plan", "-d", "cpu", "--keep-free", text, "x"}, &plan);
    EXPECT_EQ(holder.holder.memory_limit, bytes) << text;
    EXPECT_EQ(plan.keep_free, bytes) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(, Commands, testing::Values("stfs", "stfs-info", "stfs-gpu"));

}  // namespace
}  // namespace stfs::test
