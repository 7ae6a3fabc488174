// stfs-info gives the same output if threads cannot be started, and fails if fsync(2) fails.
// tests/support/failing_calls makes the Nth call fail.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/failing_calls.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class FailingTools : public testing::TestWithParam<std::vector<std::string>> {
 protected:
  void SetUp() override { skip_where_calls_cannot_fail(); }
  FailingTools() {
    const std::vector<Tensor> tensors = {random_tensor("w", "F16", {20, 10}, 1),
                                         random_tensor("layer.0.bias", "F32", {7}, 2),
                                         random_tensor("layer.1.bias", "BF16", {7}, 3)};
    write_safetensors(dir_ / "a.safetensors", tensors, Metadata{{"key", "value"}});
    write_safetensors(dir_ / "b.safetensors", tensors);
  }

  // Runs the command of the test. {a}, {b} and {new} are replaced by paths of files.
  Outcome outcome(const std::vector<std::string>& environment = {}) const {
    std::vector<std::string> words = {STFS_INFO_BINARY};
    for (std::string word : GetParam()) {
      if (word == "{a}" || word == "{b}" || word == "{new}")
        word = dir_ / (word.substr(1, word.size() - 2) + ".safetensors");
      words.push_back(word);
    }
    return run(words, {.environment = environment});
  }

  // Removes the file that `extract` wrote. Returns its bytes, or "" if there is no file.
  std::string take_file() const {
    const std::filesystem::path path = dir_ / "new.safetensors";
    if (!std::filesystem::exists(path)) return "";
    std::string bytes = read_file(path);
    std::filesystem::remove(path);
    return bytes;
  }

  TempDir dir_;
};

TEST_P(FailingTools, GiveSameOutputWithoutThreads) {
  const Outcome right = outcome();
  const std::string file = take_file();
  for (const char* at : {"1", "2"}) {
    for (const char* on : {"STFS_FAIL_ON=1", "STFS_NOTHING="}) {
      const Outcome result =
          outcome(failing("pthread_create", {std::string("STFS_FAIL_AT=") + at, on}));

      EXPECT_EQ(result.status, right.status) << result.err;
      EXPECT_EQ(result.out, right.out);
      EXPECT_EQ(result.err, right.err);
      EXPECT_EQ(take_file(), file);
    }
  }
}

// The bytes are on the disk before the file gets its name, and the name is on the disk before the
// command ends.
TEST(FailingExtract, FailsIfFsyncFails) {
  skip_where_calls_cannot_fail();
  if (testing::Test::IsSkipped()) return;
  for (const char* const at : {"1", "2"}) {
    for (const auto& [verb, glob] : {std::pair("extract", "*"), std::pair("report", "--")}) {
      const TempDir dir;
      write_safetensors(dir / "m.safetensors", {random_tensor("w", "F32", {5})});
      const Outcome result =
          run({STFS_INFO_BINARY, verb, "-o", dir / "new", dir / "m.safetensors", glob},
              {.environment = failing("fsync", {std::string("STFS_FAIL_AT=") + at})});

      EXPECT_EQ(result.status, 3) << at << result.err;
      EXPECT_NE(result.err.find("Input/output error"), std::string::npos) << result.err;
      EXPECT_EQ(std::filesystem::exists(dir / "new"), at == std::string("2")) << verb;
    }
  }
}

// For a new directory, fsync(2) is called for each file, the index and the directory, and then for
// the parent directory.
TEST(FailingEdit, FailsIfFsyncFails) {
  skip_where_calls_cannot_fail();
  if (testing::Test::IsSkipped()) return;
  for (int at = 1; at <= 6; ++at) {
    const TempDir dir;
    write_safetensors(dir / "m.safetensors",
                      {random_tensor("v", "F32", {500}), random_tensor("w", "F32", {500})});
    const Outcome result =
        run({STFS_INFO_BINARY, "edit", dir / "m.safetensors", "--shard-size", "2000", "-o",
             dir / "new"},
            {.environment = failing("fsync", {"STFS_FAIL_AT=" + std::to_string(at)})});
    EXPECT_EQ(result.status, at == 6 ? 0 : 3) << at << result.err;
    EXPECT_EQ(result.err.find("Input/output error") != std::string::npos, at != 6) << result.err;
    EXPECT_EQ(names_in(dir.path()).size(), at < 5 ? 1U : 2U) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Verbs, FailingTools,
    testing::Values(std::vector<std::string>{"list", "{a}"},
                    std::vector<std::string>{"show", "--json", "{a}", "w"},
                    std::vector<std::string>{"check", "{a}"},
                    std::vector<std::string>{"cat", "--npy", "--slice", "1:3", "{a}", "w"},
                    std::vector<std::string>{"stats", "--json", "{a}"},
                    std::vector<std::string>{"hash", "{a}"},
                    std::vector<std::string>{"diff", "{a}", "{b}"},
                    std::vector<std::string>{"extract", "-o", "{new}", "{a}", "layer*"}),
    [](const auto& verb) { return verb.param[0]; });

}  // namespace
}  // namespace stfs::test
