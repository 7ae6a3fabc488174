// Versions of a run are named once they are complete.
#include "core/checkpoint/follow.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class FollowerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "follow-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    run_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(run_); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(run_ + "/" + name).parent_path());
    std::ofstream(run_ + "/" + name, std::ios::binary) << text;
  }
  // A delta in which nothing changed.
  void write_version(const std::string& name) const {
    write(name + "/model.safetensors.index.json", R"({"metadata":{},"weight_map":{}})");
  }

  std::string run_;
};

using FoundPaths = std::vector<std::string>;

TEST_F(FollowerTest, NamesEachVersionOnceInNaturalOrderAfterTwoEqualLooks) {
  write_version("step_10");
  write_version("step_9");
  Follower follower(run_ + "/");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), (FoundPaths{run_ + "/step_9", run_ + "/step_10"}));
  EXPECT_EQ(follower.look(), FoundPaths());
  std::filesystem::remove_all(run_ + "/step_9");
  write_version("step_11");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_11"});
}

TEST_F(FollowerTest, WaitsForWhatTheIndexNames) {
  write("weight_v000001/model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  write("weight_v000001/1.safetensors", "too short");
  Follower follower(run_);
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths());
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  write("weight_v000001/1.safetensors",
        static_cast<char>(header.size()) + std::string(7, '\0') + header + "x");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/weight_v000001"});
}

TEST_F(FollowerTest, PassesOverTemporaryNamesAndWaitsForAMarker) {
  for (const char* name : {"tmp-checkpoint-1", ".step_1", "other_1", "step_1", "step_2"}) {
    write_version(name);
  }
  write("step_2/STABLE", "");
  Follower follower(run_, "STABLE");
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_2"});
}

}  // namespace
}  // namespace stfs::test
