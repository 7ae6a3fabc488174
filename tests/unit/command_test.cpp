// The tables of the three command lines, and the programs that print them.
#include "core/base/command.h"

#include "fs/fuse/options.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tools/gpu/client/verbs.h"
#include "tools/info/verbs.h"

#include <gtest/gtest.h>

#include <algorithm>
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

  // The output of --help for a verb; for null, of the command itself.
  static std::string help_of(const VerbRow* verb) {
    std::vector<std::string> words{program().binary};
    if (verb != nullptr) words.emplace_back(verb->name);
    words.emplace_back("--help");
    return run(words).out;
  }

  // The verbs of the command line, and null for the command itself.
  static std::vector<const VerbRow*> helps() {
    std::vector<const VerbRow*> verbs{nullptr};
    if (!program().command.has_verbs) return verbs;
    for (const VerbRow& verb : program().command.verbs) {
      if (!verb.help.empty()) verbs.push_back(&verb);
    }
    return verbs;
  }
};

// The words of a text that begin with a dash, cut at their argument.
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

TEST_P(Commands, EveryRowSaysWhatItDoesAndWhoTakesIt) {
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

TEST_P(Commands, PrintTheOptionsOfTheTableAndNoOthers) {
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

TEST_P(Commands, PrintEveryVerbOperandAndMountOption) {
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

// The build fills the marks; the descriptions of verbs are written by hand.
TEST_P(Commands, HaveAPageForTheirVerbsWithMarksForTheirOptions) {
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

TEST_P(Commands, PrintNoLineOverEightyColumns) {
  for (const VerbRow* verb : helps()) {
    std::istringstream lines(help_of(verb));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(GpuCommand, TakesASizeInEveryNotationThatItsCheckTakes) {
  for (const auto& [text, bytes] : {std::pair("16", 16U), std::pair("0x10", 16U),
                                    std::pair("2K", 2048U), std::pair("1MiB", 1048576U)}) {
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
