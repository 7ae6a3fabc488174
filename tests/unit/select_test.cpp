// Tests of finding tensors by the names that users type.
#include "core/checkpoint/select.h"

#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace stfs::test {
namespace {

class Select : public ::testing::Test {
 protected:
  Select() {
    std::vector<Tensor> tensors;
    for (const char* name : {"lm_head.weight", "model.norm.weight", "model.layers.2.mlp.weight",
                             "model.layers.10.mlp.weight", "a[0]", "a0"}) {
      tensors.push_back(random_tensor(name, "U8", {2}, 1));
    }
    write_safetensors(path_, tensors);
  }

  std::vector<std::string> selected(const std::string& name) const {
    const Checkpoint checkpoint(std::span(&path_, 1));
    std::vector<std::string> names;
    for (const std::uint32_t number : select(checkpoint, name)) {
      names.emplace_back(checkpoint.name(number));
    }
    return names;
  }
  std::string similar(const std::string& name) const {
    return std::string(similar_name(Checkpoint(std::span(&path_, 1)), name));
  }

  const TempDir dir_;
  const std::string path_ = dir_ / "model.safetensors";
};

TEST_F(Select, SuggestsNothingForOneCharacter) {
  write_safetensors(path_, {random_tensor("w", "U8", {2}), random_tensor("weight", "U8", {2})});

  EXPECT_EQ(similar("-"), "");
  EXPECT_EQ(similar("W"), "");
  EXPECT_EQ(similar("we"), "w");
}

TEST_F(Select, PrefersExactNameToGlob) {
  EXPECT_EQ(selected("a[0]"), std::vector<std::string>{"a[0]"});
  EXPECT_EQ(selected("a?"), std::vector<std::string>{"a0"});
  EXPECT_EQ(selected("model.layers.*").size(), 2u);
  EXPECT_TRUE(selected("model").empty());
}

TEST_F(Select, GlobMatchesNulAsCharacter) {
  using std::string_literals::operator""s;
  const std::vector<std::string> names{"a\0b"s, "a\0\1"s, "a", "ab", "\0"s};
  std::vector<Tensor> tensors;
  for (const std::string& name : names) tensors.push_back(random_tensor(name, "U8", {2}));
  write_safetensors(path_, tensors);

  EXPECT_EQ(selected("*").size(), names.size());
  EXPECT_EQ(selected("a*").size(), 4U);
  EXPECT_EQ(selected("a?b"), std::vector<std::string>{names[0]});
  EXPECT_EQ(selected("a[!x]?"), (std::vector<std::string>{names[0], names[1]}));
  EXPECT_EQ(selected("[[:cntrl:]]"), std::vector<std::string>{names[4]});
  EXPECT_EQ(selected("*\0b"s), std::vector<std::string>{names[0]});
  EXPECT_EQ(selected("?"), (std::vector<std::string>{"a", names[4]}));
  EXPECT_TRUE(selected("a?\1b").empty());
}

TEST_F(Select, SuggestsNameForPrefixSuffixAndTypo) {
  EXPECT_EQ(similar("lm_head"), "lm_head.weight");
  EXPECT_EQ(similar("norm.weight"), "model.norm.weight");
  EXPECT_EQ(similar("model.nrom.weight"), "model.norm.weight");
  EXPECT_EQ(similar("mlp.weight"), "model.layers.2.mlp.weight");
  EXPECT_EQ(similar("something.else"), "");
  EXPECT_EQ(similar(""), "");
  EXPECT_EQ(similar(std::string(1000, 'x')), "");
}

TEST_F(Select, ReportsUnmatchedNameAndGlob) {
  const Checkpoint checkpoint(std::span(&path_, 1));

  EXPECT_EQ(no_such_tensor(checkpoint, "lm_head"),
            "tensor \"lm_head\": not in the checkpoint (did you mean \"lm_head.weight\"?)");
  EXPECT_EQ(no_such_tensor(checkpoint, "zzzzzz"), "tensor \"zzzzzz\": not in the checkpoint");
  EXPECT_EQ(no_such_tensor(checkpoint, "layers.9.*"), "\"layers.9.*\": matches no tensor");
}

}  // namespace
}  // namespace stfs::test
