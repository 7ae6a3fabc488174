// stfs-info on a terminal: it prints the same there as elsewhere, and erases its progress bar at
// the end.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Words = std::vector<std::string>;

constexpr unsigned kWidths[] = {40, 80, 200};

class InfoOnATerminal : public ::testing::Test {
 protected:
  InfoOnATerminal() {
    // Short names, so that no line of a tensor is wider than the narrowest terminal.
    std::vector<Tensor> tensors;
    for (unsigned i = 0; i < 20; ++i) {
      tensors.push_back(random_tensor("t" + std::to_string(i), "F32", {1000 * i + 1}, i));
    }
    write_safetensors(a_, tensors);
    tensors.pop_back();
    write_safetensors(b_, tensors);
  }

  static Outcome info(Words words, const RunOptions& options) {
    words.insert(words.begin(), STFS_INFO_BINARY);
    return run(words, options);
  }

  // Expects that the command draws a bar and prints the same as without a terminal.
  static void expect_bar(const Words& words, int status = 0) {
    const Outcome elsewhere = info(words, {});
    for (const unsigned columns : kWidths) {
      const Outcome result = info(words, {.terminal_columns = columns});

      EXPECT_EQ(result.status, status) << result.out;
      EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
      EXPECT_EQ(screen(result.out, columns), screen(elsewhere.out, columns)) << result.out;
    }
  }

  TempDir dir_;
  std::string a_ = dir_ / "a.safetensors";
  std::string b_ = dir_ / "b.safetensors";
};

TEST_F(InfoOnATerminal, HashShowsABarThatGoes) {
  expect_bar({"hash", a_});
  expect_bar({"hash", "--json", a_});
}

TEST_F(InfoOnATerminal, StatsShowsABarThatGoes) {
  expect_bar({"stats", a_});
  expect_bar({"stats", "--json", a_});
}

TEST_F(InfoOnATerminal, DiffShowsABarThatGoes) {
  expect_bar({"diff", a_, b_}, 1);
  expect_bar({"diff", "--json", a_, b_}, 1);
}

TEST_F(InfoOnATerminal, ExtractShowsABarThatGoes) {
  for (const unsigned columns : kWidths) {
    const Outcome result =
        info({"extract", a_, "*", "-o", dir_ / "new.safetensors"}, {.terminal_columns = columns});

    EXPECT_EQ(result.status, 0) << result.out;
    EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
    EXPECT_EQ(screen(result.out, columns), Words{"20 tensors, 746.3 KiB"}) << result.out;
  }
}

TEST_F(InfoOnATerminal, NoBarIsShownWhereTheTerminalIsDumbOrOfNoType) {
  for (const Words& command : {Words{"env", "TERM=dumb", STFS_INFO_BINARY, "hash", a_},
                               Words{"env", "-u", "TERM", STFS_INFO_BINARY, "hash", a_}}) {
    const Outcome result = run(command, {.terminal_columns = 80});

    EXPECT_EQ(result.status, 0);
    EXPECT_TRUE(progress_texts(result.out).empty()) << result.out;
    EXPECT_EQ(result.out, info({"hash", a_}, {}).out);
  }
}

class ErrorsOnATerminal : public MountTest {};

TEST_F(ErrorsOnATerminal, AreALineOfTheirOwn) {
  const TempDir dir;
  const std::string file = dir / "m.safetensors";
  write_safetensors(file,
                    {random_tensor("a", "U8", {100'000}), random_tensor("b", "U8", {4'000'000})});
  const std::size_t end = std::filesystem::file_size(file);
  const FaultyDisk disk(dir.path());
  disk.fail_or_stall("fail", "m.safetensors", end - 4096, end);

  const Outcome result =
      run({STFS_INFO_BINARY, "hash", "-j", "1", disk / "m.safetensors"}, {.terminal_columns = 200});

  EXPECT_EQ(result.status, 3) << result.out;
  EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
  const Words rows = screen(result.out, 200);
  ASSERT_EQ(rows.size(), 2u) << result.out;
  EXPECT_EQ(rows[0].substr(64), "  a") << rows[0];
  EXPECT_TRUE(rows[1].starts_with("stfs-info: ")) << rows[1];
}

}  // namespace
}  // namespace stfs::test
