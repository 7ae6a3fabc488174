// stfs-info on a terminal: tables for human readers, and a progress bar that disappears before
// other output.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/mounted.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using Words = std::vector<std::string>;

class InfoOnTerminal : public ::testing::Test {
 protected:
  InfoOnTerminal() {
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
    const Outcome piped = info(words, {});
    for (const unsigned columns : kTerminalWidths) {
      const Outcome result = info(words, {.terminal_columns = columns});

      EXPECT_EQ(result.status, status) << result.out;
      EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
      EXPECT_EQ(screen(result.out, columns), screen(piped.out, columns)) << result.out;
    }
  }

  TempDir dir_;
  std::string a_ = dir_ / "a.safetensors";
  std::string b_ = dir_ / "b.safetensors";
};

TEST_F(InfoOnTerminal, HashShowsAndRemovesBar) {
  expect_bar({"hash", a_});
  expect_bar({"hash", "--json", a_});
}

TEST_F(InfoOnTerminal, StatsShowsAndRemovesBar) {
  expect_bar({"stats", "--json", a_});
  for (const unsigned columns : kTerminalWidths) {
    const Outcome result = info({"stats", a_}, {.terminal_columns = columns});

    EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
    EXPECT_TRUE(screen(result.out, columns)[0].starts_with("  NAME")) << result.out;
  }
}

TEST_F(InfoOnTerminal, DiffShowsAndRemovesBar) {
  expect_bar({"diff", "--json", a_, b_}, 1);
  for (const unsigned columns : kTerminalWidths) {
    const Outcome result = info({"diff", a_, b_}, {.terminal_columns = columns});

    EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
    EXPECT_EQ(screen(result.out, columns), (Words{"NAME  DIFFERENCE", "t19   only in A",
                                                  "1 of 20 tensors differs: 1 only in A"}));
  }
}

TEST_F(InfoOnTerminal, ExtractShowsAndRemovesBar) {
  for (const unsigned columns : kTerminalWidths) {
    const Outcome result = info({"extract", "--force", a_, "*", "-o", "new"},
                                {.directory = dir_.path(), .terminal_columns = columns});

    EXPECT_EQ(result.status, 0) << result.out;
    EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
    EXPECT_EQ(screen(result.out, columns), Words{"new: 20 tensors, 746.3 KiB"}) << result.out;
  }
}

TEST_F(InfoOnTerminal, HashEscapesControlCharacters) {
  write_safetensors(a_, {random_tensor("\u009b31m\u202e", "U8", {1})});
  const Outcome piped = info({"hash", a_}, {});
  const Outcome result = info({"hash", a_}, {.terminal_columns = 200});

  EXPECT_TRUE(piped.out.ends_with("  \u009b31m\u202e\n")) << piped.out;
  EXPECT_TRUE(result.out.ends_with("  \\x9b31m\\u202e\n")) << result.out;
}

TEST_F(InfoOnTerminal, BarIsOnStandardErrorIfOutputIsNotATerminal) {
  const Words lines = screen(info({"hash", a_}, {}).out, 200);
  for (const char* script :
       {R"("$1" hash "$2" > "$3"; cat "$3")", R"("$1" hash "$2" | cat > "$3"; cat "$3")"}) {
    const Outcome result = run({"bash", "-c", script, "bash", STFS_INFO_BINARY, a_, dir_ / "out"},
                               {.terminal_columns = 200});

    EXPECT_FALSE(progress_texts(result.out).empty()) << script;
    EXPECT_EQ(screen(result.out, 200), lines) << script;
  }
}

TEST_F(InfoOnTerminal, ClosedPipeRemovesBar) {
  // Descriptor 8 is a pipe without a reader.
  const Outcome result = run({"bash", "-c", R"(mkfifo "$3"; exec 9<> "$3" 8> "$3" 9<&-
                              "$1" hash -j 1 "$2" >&8)",
                              "bash", STFS_INFO_BINARY, a_, dir_ / "fifo"},
                             {.terminal_columns = 200});

  EXPECT_EQ(result.status, 128 + SIGPIPE) << result.out;
  EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
  EXPECT_EQ(screen(result.out, 200), Words());
}

TEST_F(InfoOnTerminal, OutputMayBeAnotherTerminal) {
  PseudoTerminal other(200);
  const std::string path =
      "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(other.end());
  const Outcome result =
      run({"sh", "-c", R"("$1" hash "$2" > "$3")", "sh", STFS_INFO_BINARY, a_, path},
          {.terminal_columns = 200});

  EXPECT_EQ(other.output(), info({"hash", a_}, {}).out);
  EXPECT_FALSE(progress_texts(result.out).empty()) << result.out;
  EXPECT_EQ(screen(result.out, 200), Words());
}

TEST_F(InfoOnTerminal, RejectsOutputOfBytes) {
  for (const auto& [words, instead] : std::vector<std::pair<Words, std::string>>{
           {{"cat", a_, "t1"}, "pipe it to od(1)"},
           {{"cat", "--npy", a_, "t1"}, "pipe it to od(1)"},
           {{"extract", a_, "*", "-o", "-"}, "name a file"}}) {
    const Outcome result = info(words, {.directory = dir_.path(), .terminal_columns = 200});

    EXPECT_EQ(result.status, 2);
    EXPECT_EQ(screen(result.out, 200),
              Words{"stfs-info: standard output is a terminal: redirect it, or " + instead});
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "-"));
}

class TablesOnTerminal : public InfoOnTerminal {
 protected:
  TablesOnTerminal() {
    const float values[] = {1, -2, 0, 0.5F};
    const float bad[] = {1, std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::infinity(), 0};
    const auto tensor = [](std::string name, const float(&four)[4]) {
      return Tensor{std::move(name),
                    "F32",
                    {4},
                    std::string(reinterpret_cast<const char*>(four), sizeof four)};
    };
    for (const char* layer : {"10", "2", "1"}) {
      good_.push_back(
          tensor("model.layers." + std::string(layer) + ".self_attn.q_proj.weight", values));
    }
    mixed_ = good_;
    mixed_.push_back(tensor("norm", bad));
    write_safetensors(a_, mixed_);
    write_safetensors(b_, good_);
  }

  static Words rows(const Words& words, unsigned columns, const std::string& locale,
                    int status = 0) {
    const Outcome result =
        info(words, {.environment = {"LC_ALL=" + locale}, .terminal_columns = columns});
    EXPECT_EQ(result.status, status) << result.out;
    return screen(result.out, columns);
  }

  std::vector<Tensor> good_, mixed_;
};

TEST_F(TablesOnTerminal, StatsMarksNonfiniteTensors) {
  EXPECT_EQ(rows({"stats", a_}, 200, "C.UTF-8"),
            (Words{"  NAME                                     COUNT        MIN        MAX       "
                   "MEAN        STD  ZEROS    NAN    INF",
                   "  model.layers.1.self_attn.q_proj.weight       4         -2          1     "
                   "-0.125       1.14      1      0      0",
                   "  model.layers.2.self_attn.q_proj.weight       4         -2          1     "
                   "-0.125       1.14      1      0      0",
                   "  model.layers.10.self_attn.q_proj.weight      4         -2          1     "
                   "-0.125       1.14      1      0      0",
                   "! norm                                         4          0          1        "
                   "0.5        0.5      1      1      1",
                   "1 of 4 tensors with NaN or infinity; --nonfinite shows where"}));
  EXPECT_EQ(rows({"stats", b_}, 200, "C").back(), "3 tensors, none with NaN or infinity");
}

TEST_F(TablesOnTerminal, StatsFitsWidthAndKeepsNamesDistinct) {
  EXPECT_EQ(rows({"stats", a_}, 80, "C.UTF-8"),
            (Words{"  NAME                                           MIN        MAX    NAN    INF",
                   "  model.layers.1.self_attn.q_proj.weight          -2          1      0      0",
                   "  model.layers.2.self_attn.q_proj.weight          -2          1      0      0",
                   "  model.layers.10.self_attn.q_proj.weight         -2          1      0      0",
                   "! norm                                             0          1      1      1",
                   "1 of 4 tensors with NaN or infinity; --nonfinite shows where",
                   "columns left out: COUNT MEAN STD ZEROS"}));
  EXPECT_EQ(
      rows({"stats", a_}, 40, "C"),
      (Words{"  NAME", "        MIN        MAX    NAN    INF",
             "  model.layers.1.self_attn.q_proj.weight", "         -2          1      0      0",
             "  model.layers.2.self_attn.q_proj.weight", "         -2          1      0      0",
             "  model.layers.10...._attn.q_proj.weight", "         -2          1      0      0",
             "! norm", "          0          1      1      1",
             "1 of 4 tensors with NaN or infinity; --n", "onfinite shows where",
             "columns left out: COUNT MEAN STD ZEROS"}));
}

TEST_F(TablesOnTerminal, StatsKeepsSortColumnAtEveryWidth) {
  for (const unsigned columns : {40U, 80U, 200U}) {
    const std::vector<std::string> lines =
        rows({"stats", "--sort", "zeros", "--top", "2", a_}, columns, "C");
    EXPECT_NE((lines[0] + lines[1]).find(" ZEROS"), std::string::npos) << columns;
    EXPECT_EQ(std::ranges::count_if(
                  lines, [](const std::string& line) { return line.starts_with("  model."); }),
              2)
        << columns;
  }
}

TEST_F(TablesOnTerminal, StatsMarksInRedUnlessNoColor) {
  const Outcome coloured = info({"stats", a_}, {.terminal_columns = 200});
  const Outcome plain =
      info({"stats", a_}, {.environment = {"NO_COLOR=1"}, .terminal_columns = 200});

  EXPECT_NE(coloured.out.find("\x1b[1;31m! norm"), std::string::npos);
  EXPECT_EQ(plain.out.find("\x1b[1"), std::string::npos);
  EXPECT_EQ(screen(coloured.out, 200), screen(plain.out, 200));
}

TEST_F(TablesOnTerminal, StatsAbbreviatesLargeCounts) {
  write_safetensors(a_, {{"a", "U8", {99'999}, std::string(99'999, '\0')},
                         {"b", "U8", {100'000}, std::string(100'000, '\0')},
                         {"c", "U8", {1'239'999}, std::string(1'239'999, '\0')},
                         {"d", "U8", {12'399'999}, std::string(12'399'999, '\1')}});

  const Words lines = rows({"stats", a_}, 80, "C");

  ASSERT_EQ(lines.size(), 6U);
  EXPECT_TRUE(
      lines[1].starts_with("  a     99999          0          0          0          0  99999"))
      << lines[1];
  EXPECT_TRUE(lines[2].starts_with("  b      100k ")) << lines[2];
  EXPECT_TRUE(lines[3].starts_with("  c     1.23M ")) << lines[3];
  EXPECT_TRUE(lines[4].starts_with("  d     12.3M ")) << lines[4];
}

TEST_F(TablesOnTerminal, NonfiniteListsTensorsAndPlaces) {
  const Words bad = rows({"stats", "--nonfinite", a_}, 200, "C", 1);

  ASSERT_EQ(bad.size(), 6U);
  EXPECT_TRUE(bad[1].starts_with("! norm")) << bad[1];
  EXPECT_EQ(bad[2], "    NaN at [1]");
  EXPECT_EQ(bad[3], "    inf at [2]");
  EXPECT_EQ(bad[4], "1 of 4 tensors with NaN or infinity");
  // The last line is a command that shows the values around the first place.
  EXPECT_EQ(bad[5], "stfs-info cat --slice 0:4 --as f32 " + a_ + " norm | od -A n -v -t f4");
  const Outcome shown = run(
      {"sh", "-c", std::string(STFS_INFO_BINARY) + bad[5].substr(std::string("stfs-info").size())});
  EXPECT_NE(shown.out.find("nan "), std::string::npos) << shown.out << shown.err;
  EXPECT_EQ(rows({"stats", "--nonfinite", b_}, 80, "C"),
            Words{"3 tensors, none with NaN or infinity"});
}

TEST_F(TablesOnTerminal, NonfiniteListsEightPlacesAndCountsRest) {
  std::string bytes(std::size_t{2} * 300, '\0');
  for (std::size_t i = 100; i < 200; ++i) bytes.replace(2 * i, 2, "\xc0\x7f");
  write_safetensors(a_, {{"it's", "BF16", {3, 100}, bytes}});
  const Words lines = rows({"stats", "--nonfinite", a_}, 80, "C", 1);

  ASSERT_GE(lines.size(), 5U);
  EXPECT_EQ(lines[2], "    NaN at [1,0] [1,1] [1,2] [1,3] [1,4] [1,5] [1,6] [1,7] and 92 more");
  std::string command;  // wrapped into as many rows as the path needs
  for (std::size_t i = 4; i < lines.size(); ++i) command += lines[i];
  EXPECT_TRUE(command.starts_with("stfs-info cat --slice 1,0:5 --as f32 ")) << command;
  EXPECT_NE(command.find(R"( 'it'\''s' | od)"), std::string::npos) << command;
}

TEST_F(TablesOnTerminal, DiffDescribesEachDifference) {
  good_[0].bytes[10] ^= 1;
  good_[1].dtype = "I32";
  good_[2].shape = {2, 2};
  write_safetensors(b_, good_);

  EXPECT_EQ(rows({"diff", a_, b_}, 80, "C.UTF-8", 1),
            (Words{"NAME                                     DIFFERENCE",
                   "model.layers.1.self_attn.q_proj.weight   shape [4] → [2,2]",
                   "model.layers.2.self_attn.q_proj.weight   dtype F32 → I32",
                   "model.layers.10.self_attn.q_proj.weight  bytes differ from byte 10",
                   "norm                                     only in A",
                   "4 of 4 tensors differ: 3 changed, 1 only in A"}));
  EXPECT_EQ(rows({"diff", b_, a_}, 40, "C", 1),
            (Words{"NAME", "  DIFFERENCE", "model.layers.1.self_attn.q_proj.weight",
                   "  [2,2] -> [4]", "model.layers.2.self_attn.q_proj.weight", "  I32 -> F32",
                   "model.layers.10.self_attn.q_proj.weight", "  from byte 10", "norm",
                   "  only in B", "4 of 4 tensors differ: 3 changed, 1 only", " in B"}));
}

TEST_F(TablesOnTerminal, DiffReportsLargestDifferenceBetweenTwoTypes) {
  using namespace std::string_literals;
  // 1, 2, 3, 4 and 1, 2, 3.5, 4
  write_safetensors(a_, {{"same", "F32", {1}, "\0\0\x80\x3f"s},
                         {"w", "F32", {2, 2}, "\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40"s}});
  write_safetensors(b_, {{"same", "BF16", {1}, "\x80\x3f"s},
                         {"w", "BF16", {2, 2}, "\x80\x3f\0\x40\x60\x40\x80\x40"s}});

  EXPECT_EQ(
      rows({"diff", a_, b_}, 80, "C.UTF-8", 1),
      (Words{"NAME  DIFFERENCE", "same  dtype F32 → BF16, equal values",
             "w     dtype F32 → BF16, up to 0.5 at [1,0]", "2 of 2 tensors differ: 2 changed"}));
  EXPECT_EQ(rows({"diff", a_, b_}, 40, "C", 1),
            (Words{"NAME  DIFFERENCE", "same  F32 -> BF16, same", "w     F32 -> BF16, 0.5",
                   "2 of 2 tensors differ: 2 changed"}));
}

TEST_F(TablesOnTerminal, DiffValuesPrintsColumnsAndTotals) {
  const auto floats = [](std::vector<float> values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string long_name = "model.layers.10.self_attn.q_proj.weight";
  write_safetensors(a_, {{long_name, "F32", {2, 2}, floats({3, 4, 0, 1})},
                         {"nan", "F32", {2}, floats({1, nan})},
                         {"old", "F32", {1}, floats({9})},
                         {"same", "F32", {1}, floats({2})},
                         {"gone", "F32", {3}, floats({1, 2, 3})}});
  write_safetensors(b_, {{long_name, "F32", {2, 2}, floats({3, 4.5F, 0, 1})},
                         {"nan", "F32", {2}, floats({1, 1})},
                         {"new", "F32", {1}, floats({9})},
                         {"same", "F32", {1}, floats({2})}});
  const Words lines = rows({"diff", "--values", a_, b_}, 80, "C.UTF-8", 1);

  EXPECT_EQ(
      lines,
      (Words{"NAME                               CHANGE      LARGEST  DISTANCE    EQUAL  AT",
             "gone                               only in A",
             "model.layers.10.…tn.q_proj.weight  values          0.5    0.0981   75.00%  [0,1]",
             "nan                                values          NaN         -   50.00%  [1]",
             "old                                → new",
             "4 of 5 tensors differ: 2 changed, 1 renamed, 1 only in A",
             "75.00% of all elements equal, distance 0.0962 of the changed tensors",
             "largest difference 0.5 at model.layers.10.self_attn.q_proj.weight [0,1]",
             "1 tensor with NaN or infinity in only one of them"}));
  EXPECT_EQ(
      rows({"diff", "--values", "--no-header", "--top=1", "--sort=distance", a_, b_}, 200, "C", 1)
          .front()
          .substr(0, 3),
      "nan");
}

TEST_F(TablesOnTerminal, DiffValuesPrintsNoDistanceIfSquaresOverflow) {
  const auto f64 = [](double x, double y) {
    const double both[] = {x, y};
    return std::string(reinterpret_cast<const char*>(both), sizeof both);
  };
  write_safetensors(a_, {{"w", "F64", {2}, f64(1e300, 1)}});
  write_safetensors(b_, {{"w", "F64", {2}, f64(-1e300, 1)}});

  const Words lines = rows({"diff", "--values", a_, b_}, 100, "C", 1);

  EXPECT_EQ(lines.at(3), "50.00% of all elements equal");
}

TEST_F(TablesOnTerminal, DiffWithoutCommonNameSuggestsRename) {
  write_safetensors(a_, {{"model.w", "U8", {1}, "x"}});
  write_safetensors(b_, {{"w", "U8", {1}, "y"}});
  const Words lines = rows({"diff", a_, b_}, 200, "C", 1);
  EXPECT_TRUE(lines.back().starts_with("no name is in both: --old-edit=FILE or --new-edit=FILE"))
      << lines.back();
}

// The stored codes of FP8 with scales are not the values of the weights.
TEST_F(TablesOnTerminal, NotesThatQuantisedWeightsAreShownAsStored) {
  const std::string model = dir_ / "fp8";
  std::filesystem::create_directory(model);
  write_safetensors(model + "/model.safetensors",
                    {{"m.weight", "F8_E4M3", {2, 2}, "\x38\x39\x3a\x3b"},
                     {"m.weight_scale_inv", "F32", {1, 1}, std::string("\0\0\0\x40", 4)}});
  write_file(model + "/config.json", R"({"quantization_config":
      {"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}})");
  write_safetensors(a_, {{"m.weight", "BF16", {2, 2}, std::string(8, '\1')}});
  const std::string note = "1 quantised weight (FP8 with scales) is shown as stored: ";

  for (const char* verb : {"list", "stats"}) {
    const Outcome result = info({verb, model}, {});
    EXPECT_EQ(result.err,
              "stfs-info: note: " + model + ": " + note + "--dequantize=bf16 shows its values\n");
    EXPECT_EQ(info({verb, "--dequantize=bf16", model}, {}).err, "");
    EXPECT_EQ(info({verb, "--json", model}, {}).err, "");
  }
  const Words summary = rows({"info", model}, 80, "C");
  EXPECT_EQ(summary[3], "quantised   1 weight, FP8 with scales, shown as stored");
  EXPECT_EQ(summary[4], "            --dequantize=bf16 shows the values");
  const Outcome diff = info({"diff", "--no-header", model, a_}, {});
  EXPECT_NE(diff.err.find(note + "--old-dequantize=bf16 shows its values"), std::string::npos);
  EXPECT_TRUE(diff.out.starts_with("dtype\tm.weight\tF8_E4M3\tBF16\t-\t-\t-\n")) << diff.out;
  const Outcome values = info({"diff", "--no-header", "--old-dequantize=bf16", model, a_}, {});
  EXPECT_EQ(values.err, "");
  EXPECT_TRUE(values.out.starts_with("bytes\tm.weight\t")) << values.out;
}

TEST_F(TablesOnTerminal, DiffReportsNoDifference) {
  EXPECT_EQ(rows({"diff", a_, a_}, 80, "C"), Words{"4 tensors, no difference"});
  EXPECT_EQ(rows({"diff", "--json", a_, a_}, 80, "C"), (Words{"[", "]"}));
}

TEST_F(InfoOnTerminal, DumbOrUnknownTerminalHasNoBar) {
  for (const Words& command : {Words{"env", "TERM=dumb", STFS_INFO_BINARY, "hash", a_},
                               Words{"env", "-u", "TERM", STFS_INFO_BINARY, "hash", a_}}) {
    const Outcome result = run(command, {.terminal_columns = 80});

    EXPECT_EQ(result.status, 0);
    EXPECT_TRUE(progress_texts(result.out).empty()) << result.out;
    EXPECT_EQ(result.out, info({"hash", a_}, {}).out);
  }
}

class ErrorsOnTerminal : public MountTest {};

TEST_F(ErrorsOnTerminal, RemoveBarBeforeTheirLine) {
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

  const Outcome to_file = run({"sh", "-c", R"("$1" stats -j 1 "$2" > /dev/null)", "sh",
                               STFS_INFO_BINARY, disk / "m.safetensors"},
                              {.terminal_columns = 200});
  EXPECT_FALSE(progress_texts(to_file.out).empty()) << to_file.out;
  EXPECT_EQ(screen(to_file.out, 200), Words{rows[1]});
}

}  // namespace
}  // namespace stfs::test
