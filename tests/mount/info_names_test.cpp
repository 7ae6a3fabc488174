// How stfs-info finds the tensors that a user names: whole names, globs, and the message if a name
// or a glob matches no tensor.
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class InfoNames : public ::testing::Test {
 protected:
  InfoNames() {
    write_safetensors(a_, {random_tensor("lm_head.weight", "F32", {2}),
                           random_tensor("model.layers.0.norm.weight", "F32", {4}),
                           random_tensor("model.layers.0.mlp.weight", "F32", {8}),
                           random_tensor("model.layers.1.norm.weight", "F32", {4}),
                           random_tensor("odd[1]", "U8", {1}), random_tensor("odd1", "U8", {1})});
  }

  // Runs a verb on the checkpoint.
  Outcome run_verb(const std::string& verb, const Words& operands) const {
    Words words{verb, a_};
    words.insert(words.end(), operands.begin(), operands.end());
    if (verb == "extract") words.insert(words.end(), {"-o", out_});
    return info(words);
  }

  TempDir dir_;
  std::string a_ = dir_ / "a.safetensors";
  std::string out_ = dir_ / "out.safetensors";
};

TEST_F(InfoNames, GlobMatchesNameWithNul) {
  const std::string name("b\0c", 3);
  write_safetensors(a_, {random_tensor("a", "U8", {1}), random_tensor(name, "U8", {1})});

  EXPECT_EQ(json::parse(run_verb("list", {"--json", "*"}).out).size(), 2U);
  ASSERT_EQ(run_verb("extract", {"b*"}).status, 0);
  const json extracted = json::parse(info({"list", "--json", out_}).out);
  ASSERT_EQ(extracted.size(), 1U);
  EXPECT_EQ(extracted[0].at("name"), name);
}

TEST_F(InfoNames, UnknownNameFailsBeforeOutput) {
  for (const char* verb : {"list", "stats", "hash", "extract", "show"}) {
    const Outcome typo = run_verb(verb, {"model.layers.0.*", "model.layers.0.nrom.weight"});
    const Outcome glob = run_verb(verb, {"lm_head.weight", "layers.0.*"});

    expect_one_line(typo, 2,
                    "a.safetensors: tensor \"model.layers.0.nrom.weight\": not in the checkpoint "
                    "(did you mean \"model.layers.0.norm.weight\"?)");
    expect_one_line(glob, 2,
                    "a.safetensors: \"layers.0.*\": matches no tensor ('*layers.0.*' matches 2)");
    EXPECT_FALSE(std::filesystem::exists(out_)) << verb;
  }
}

TEST_F(InfoNames, SuggestsGlobForPartOfName) {
  expect_one_line(run_verb("list", {"norm"}), 2,
                  "tensor \"norm\": not in the checkpoint ('*norm*' matches 2)");
  expect_one_line(run_verb("cat", {"layers"}), 2, "('*layers*' matches 3)");
  expect_one_line(run_verb("list", {"nothing*"}), 2,
                  "\"nothing*\": matches no tensor (stfs-info list prints the names)");
  EXPECT_EQ(lines_of(run_verb("list", {"*norm*"}).out).size(), 3U);
}

TEST_F(InfoNames, FileAmongNamesIsErrorThatExplainsOperands) {
  write_safetensors(dir_ / "b.safetensors", {random_tensor("w", "U8", {1})});
  for (const char* verb : {"list", "stats", "hash", "extract", "show"}) {
    expect_one_line(run_verb(verb, {dir_ / "b.safetensors"}), 2,
                    "b.safetensors: a file, but only the first operand is a SOURCE; the others are "
                    "names of tensors, or globs in quotes");
    expect_one_line(run_verb(verb, {dir_.path()}), 2, ": a directory, but only the first operand");
  }
}

TEST_F(InfoNames, ReportsOperandsInWrongOrder) {
  for (const Words& command : {Words{"list", "lm*", a_}, Words{"cat", "lm_head.weight", a_},
                               Words{"extract", "lm*", a_, "-o", out_}}) {
    expect_one_line(info(command), 2, "a.safetensors\" exists: name the SOURCE first");
  }
  EXPECT_EQ(info({"list", "nosuch.safetensors", "lm*"}).status, 3);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(InfoNames, UnreadableSourceIsNotReportedAsAbsent) {
  std::filesystem::create_symlink("loop", dir_ / "loop");

  expect_one_line(info({"list", dir_ / "loop", dir_ / "a.safetensors"}), 3, "symbolic links");
}

TEST_F(InfoNames, PrefersWholeNameToGlob) {
  const json tensors = json::parse(run_verb("list", {"--json", "odd[1]"}).out);

  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].at("name"), "odd[1]");
}

TEST_F(InfoNames, PrintsTensorOfTwoOperandsOnce) {
  const json tensors =
      json::parse(run_verb("hash", {"--json", "*norm*", "model.layers.0.norm.weight"}).out);

  EXPECT_EQ(tensors.size(), 2u);
}

TEST_F(InfoNames, CatAcceptsGlobThatMatchesOneTensor) {
  const Outcome one = run_verb("cat", {"lm*"});

  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out.size(), 8u);
  expect_one_line(run_verb("cat", {"model*"}), 2, "\"model*\": matches 3 tensors: name one");
  expect_one_line(run_verb("cat", {"lm_head"}), 2, "did you mean \"lm_head.weight\"?");
}

TEST_F(InfoNames, EmptyCheckpointIsErrorOnlyWithNames) {
  const std::string empty = dir_ / "empty.safetensors";
  write_safetensors(empty, {});
  for (const char* verb : {"list", "stats", "hash"}) {
    EXPECT_EQ(info({verb, empty}).status, 0) << verb;
    expect_one_line(info({verb, empty, "*"}), 2, "\"*\": matches no tensor");
  }
}

}  // namespace
}  // namespace stfs::test
