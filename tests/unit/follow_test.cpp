// Follower must name each version of a run once it is complete.
#include "core/checkpoint/follow.h"

#include "core/base/error.h"
#include "core/remote/sources.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::chrono::milliseconds kShort{5};

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
  // Writes a delta without changes.
  void write_version(const std::string& name) const {
    write(name + "/model.safetensors.index.json", R"({"metadata":{},"weight_map":{}})");
  }

  std::string run_;
  Sources sources_;
};

using FoundPaths = std::vector<std::string>;

TEST_F(FollowerTest, NamesEachVersionOnceInNaturalOrderAfterTwoEqualLooks) {
  write_version("step_10");
  write_version("step_9");
  Follower follower(run_ + "/", sources_, {});
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), (FoundPaths{run_ + "/step_9", run_ + "/step_10"}));
  EXPECT_EQ(follower.look(), FoundPaths());
  std::filesystem::remove_all(run_ + "/step_9");
  write_version("step_11");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_11"});
}

TEST_F(FollowerTest, ReappearedVersionIsNamedAgainOnlyWithOtherFiles) {
  write_version("step_1");
  Follower follower(run_, sources_, {});
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_1"});
  std::filesystem::rename(run_ + "/step_1", run_ + "/tmp");
  EXPECT_EQ(follower.look(), FoundPaths());
  std::filesystem::rename(run_ + "/tmp", run_ + "/step_1");
  for (int looks = 0; looks < 3; ++looks) EXPECT_EQ(follower.look(), FoundPaths());
  std::filesystem::remove_all(run_ + "/step_1");
  EXPECT_EQ(follower.look(), FoundPaths());
  write_version("step_1");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_1"});
}

TEST_F(FollowerTest, ForgetsFilesReadByEarlierScans) {
  write_version("step_1");
  Follower follower(run_, sources_, {});
  follower.look();
  EXPECT_FALSE(sources_.files_read().empty());
  std::filesystem::remove_all(run_ + "/step_1");
  follower.look();
  EXPECT_EQ(sources_.files_read(), FoundPaths());
}

TEST_F(FollowerTest, NamesReplacedVersionAgain) {
  const auto tensor = [](char value) {
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    return static_cast<char>(header.size()) + std::string(7, '\0') + header + value;
  };
  for (const char* name : {"step_1/model.safetensors", "step_2/model.safetensors",
                           "other/model.safetensors", "x.safetensors"}) {
    write(name, tensor('x'));
  }
  Follower follower(run_, sources_, {});
  follower.look();
  EXPECT_EQ(follower.look(),
            (FoundPaths{run_ + "/step_1", run_ + "/step_2", run_ + "/x.safetensors"}));
  const std::string version = run_ + "/step_1";
  const auto expect_again = [&](const std::string& named) {
    EXPECT_EQ(follower.look(), FoundPaths());
    EXPECT_EQ(follower.look(), FoundPaths{named});
    for (int looks = 0; looks < 3; ++looks) EXPECT_EQ(follower.look(), FoundPaths());
  };
  const auto set_time = [&](const std::string& file,
                            int seconds) {  // otherwise both times may be equal
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type(std::chrono::seconds(seconds)));
  };
  write("step_1/model.safetensors", tensor('y'));  // in place
  set_time(version + "/model.safetensors", 1);
  expect_again(version);
  std::filesystem::remove_all(version);  // another version replaces it between two looks
  std::filesystem::rename(run_ + "/other", version);
  expect_again(version);
  write("x.safetensors", tensor('y'));
  set_time(run_ + "/x.safetensors", 2);
  expect_again(run_ + "/x.safetensors");
  write("step_1/notes.txt", "not a file of the version");
  std::filesystem::permissions(version + "/model.safetensors", std::filesystem::perms::owner_read);
  for (int looks = 0; looks < 3; ++looks) EXPECT_EQ(follower.look(), FoundPaths());
}

TEST_F(FollowerTest, WaitsForShardsInIndex) {
  write("weight_v000001/model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  write("weight_v000001/1.safetensors", "too short");
  Follower follower(run_, sources_, {});
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths());
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  write("weight_v000001/1.safetensors",
        static_cast<char>(header.size()) + std::string(7, '\0') + header + "x");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/weight_v000001"});
}

TEST_F(FollowerTest, SkipsTemporaryNamesAndWaitsForMarker) {
  for (const char* name :
       {"tmp-checkpoint-1", ".step_1", "other_1", "step_1", "step_2", "checkpoint-5.tmp",
        "step_3.incomplete", "checkpoint-6-tmp", "step_7.orbax-checkpoint-tmp-1"}) {
    write_version(name);
    if (std::string_view(name) != "step_1") write(name + std::string("/STABLE"), "");
  }
  Follower follower(run_, sources_, {.marker = "STABLE"});
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_2"});
}

TEST_F(FollowerTest, DoesNotNameShardsOrLaterParts) {
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})");
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  write("model-00001-of-00001.safetensors",
        static_cast<char>(header.size()) + std::string(7, '\0') + header + "x");
  write("m-00002-of-00002.gguf", "GGUF");
  Follower follower(run_, sources_, {});
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/model.safetensors.index.json"});
}

TEST_F(FollowerTest, WaitsForIndexOfShards) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string file = static_cast<char>(header.size()) + std::string(7, '\0') + header + "x";
  write("step_1/model-00001-of-00002.safetensors", file);
  write("step_2/model-00000-of-00001.safetensors", file);
  write("step_3/model-00001-of-00001.safetensors", file);
  Follower follower(run_, sources_, {});
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_3"});
  write("step_2/model.safetensors.index.json",
        R"({"weight_map":{"a":"model-00000-of-00001.safetensors"}})");
  follower.look();
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_2"});
}

TEST_F(FollowerTest, LatestReturnsNewestCompleteVersion) {
  write_version("step_2");
  write_version("step_10");
  write("step_11/model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  Follower follower(run_, sources_, {.latest = true, .pause = kShort});
  EXPECT_EQ(follower.next(), run_ + "/step_10");
  EXPECT_EQ(follower.next(), std::nullopt);

  std::filesystem::remove_all(run_ + "/step_2");
  std::filesystem::remove_all(run_ + "/step_10");
  Follower incomplete(run_, sources_, {.latest = true, .pause = kShort});
  EXPECT_THROW(incomplete.next(), Error);
}

TEST_F(FollowerTest, LatestIgnoresVersionSeenOnlyOnce) {
  write_version("step_1");
  Follower follower(run_, sources_, {.latest = true, .pause = kShort});
  EXPECT_EQ(follower.look(), FoundPaths());
  write_version("step_2");
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_1"});
}

TEST_F(FollowerTest, NamesRenamedVersionByNewName) {
  write_version("tmp-step_1");
  Follower follower(run_, sources_, {});
  follower.look();
  std::filesystem::rename(run_ + "/tmp-step_1", run_ + "/step_1");
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_1"});
}

TEST_F(FollowerTest, ChecksVersionWithOlderTimeAgainAndNamesItOnce) {
  write_version("step_1");
  const std::string index = run_ + "/step_1/model.safetensors.index.json";
  Follower follower(run_, sources_, {});
  follower.look();
  std::filesystem::last_write_time(
      index, std::filesystem::file_time_type::clock::now() - std::chrono::hours(100'000));
  EXPECT_EQ(follower.look(), FoundPaths());
  EXPECT_EQ(follower.look(), FoundPaths{run_ + "/step_1"});
  std::filesystem::last_write_time(index, std::filesystem::file_time_type::clock::now());
  EXPECT_EQ(follower.look(), FoundPaths());
}

TEST_F(FollowerTest, ReportsMissingDirectoryAndContinuesWhenItReturns) {
  write_version("step_1");
  Follower follower(run_, sources_, {.pause = kShort});
  EXPECT_EQ(follower.next(), run_ + "/step_1");
  std::filesystem::rename(run_, run_ + ".away");
  EXPECT_THROW(follower.next(), Error);
  EXPECT_THROW(follower.look(), Error);
  std::filesystem::rename(run_ + ".away", run_);
  write_version("step_2");
  EXPECT_EQ(follower.next(), run_ + "/step_2");
}

TEST_F(FollowerTest, CancelEndsCurrentAndLaterCalls) {
  Follower follower(run_, sources_, {});
  std::thread other([&] { follower.cancel(); });
  EXPECT_EQ(follower.next(), std::nullopt);
  other.join();
  EXPECT_EQ(follower.next(), std::nullopt);
}

TEST_F(FollowerTest, RejectsInvalidMarkerAndUnlistableUrl) {
  for (const char* marker : {"a/b", ".", ".."}) {
    EXPECT_THROW(Follower(run_, sources_, {.marker = marker}), Error);
  }
  Follower web("https://127.0.0.1:1/run", sources_, {});
  try {
    web.next();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(error.message().find("does not list"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace stfs::test
