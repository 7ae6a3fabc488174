// Every kind of SOURCE, and the exit status for each that is refused.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class Sources : public MountTest {
 protected:
  Sources() { std::filesystem::create_directory(mountpoint()); }
  ~Sources() override { unmount_all(mountpoint()); }

  std::filesystem::path mountpoint() const { return dir_ / "mnt"; }

  Outcome mount(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), STFS_BINARY);
    arguments.push_back(mountpoint());
    return run(arguments);
  }

  // Expects that the command exits with `status` and one line that begins with "stfs: " and
  // contains `words`, and that nothing is mounted.
  void expect_refused(const Outcome& result, int status,
                      const std::vector<std::string>& words = {}) const {
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("stfs: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(result.err.ends_with("\n")) << result.err;
    for (const std::string& word : words)
      EXPECT_NE(result.err.find(word), std::string::npos)
          << "no '" << word << "' in " << result.err;
    EXPECT_TRUE(mounts_at(mountpoint()).empty());
  }

  // Writes two shards and their index to dir_/model.
  std::filesystem::path write_sharded() const {
    const std::filesystem::path model = dir_ / "model";
    std::filesystem::create_directory(model);
    write_safetensors(model / "one.safetensors", {random_tensor("a", "U8", {10}, 1)});
    write_safetensors(model / "two.safetensors", {random_tensor("b", "U8", {20}, 2)});
    write_index(model / "model.safetensors.index.json",
                {{"a", "one.safetensors"}, {"b", "two.safetensors"}}, 30);
    return model;
  }

  TempDir dir_;
};

using NameList = std::vector<std::string>;

TEST_F(Sources, AFile) {
  const Mounted mounted({test_data("single/voices.safetensors")});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"mask", "tokens"}));
}

TEST_F(Sources, AFileWithoutTensors) {
  write_safetensors(dir_ / "none.safetensors", {});
  const Mounted mounted({dir_ / "none.safetensors"});
  EXPECT_EQ(names_in(mounted.path()), NameList{});
}

TEST_F(Sources, AnIndexFile) {
  const Mounted mounted({write_sharded() / "model.safetensors.index.json"});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"a", "b"}));
}

TEST_F(Sources, ADirectoryWithAnIndexTakesTheIndex) {
  const std::filesystem::path model = write_sharded();
  write_safetensors(model / "model.safetensors", {random_tensor("not this", "U8", {1})});
  const Mounted mounted({model});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"a", "b"}));
}

TEST_F(Sources, ADirectoryWithModelSafetensorsTakesIt) {
  write_safetensors(dir_ / "model.safetensors", {random_tensor("this", "U8", {1})});
  write_safetensors(dir_ / "adapter.safetensors", {random_tensor("not this", "U8", {1})});
  const Mounted mounted({dir_.path()});
  EXPECT_EQ(names_in(mounted.path()), NameList{"this"});
}

TEST_F(Sources, ADirectoryWithALoneFileTakesIt) {
  write_safetensors(dir_ / "adapter.safetensors", {random_tensor("this", "U8", {1})});
  write_file(dir_ / "config.json", "{}");
  const Mounted mounted({dir_.path()});
  EXPECT_EQ(names_in(mounted.path()), NameList{"this"});
}

TEST_F(Sources, ADirectoryWithNothingIsRefused) {
  std::filesystem::create_directory(dir_ / "empty");
  expect_refused(mount({dir_ / "empty"}), 3, {"empty", ".safetensors"});
}

TEST_F(Sources, ADirectoryWithoutACheckpointIsRefused) {
  std::filesystem::create_directory(dir_ / "other");
  write_file(dir_ / "other/pytorch_model.bin", "x");
  expect_refused(mount({dir_ / "other"}), 3, {"other"});
}

TEST_F(Sources, ADirectoryWithSeveralFilesIsRefusedAndListsThem) {
  std::filesystem::create_directory(dir_ / "two");
  write_safetensors(dir_ / "two/first.safetensors", {random_tensor("a", "U8", {1})});
  write_safetensors(dir_ / "two/second.safetensors", {random_tensor("b", "U8", {1})});
  expect_refused(mount({dir_ / "two"}), 3, {"first.safetensors", "second.safetensors"});
}

TEST_F(Sources, TheMapDecidesAndNotWhatElseLiesThere) {
  const std::filesystem::path model = write_sharded();
  write_safetensors(model / "three.safetensors", {random_tensor("c", "U8", {1})});
  write_safetensors(model / "two.safetensors",
                    {random_tensor("b", "U8", {20}, 2), random_tensor("unnamed", "U8", {1})});
  const Mounted mounted({model});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"a", "b"}));
}

TEST_F(Sources, AWrongTotalSizeAndAnUnnamedTensorAreWarnings) {
  const std::filesystem::path model = write_sharded();
  write_safetensors(model / "two.safetensors",
                    {random_tensor("b", "U8", {20}, 2), random_tensor("unnamed", "U8", {1})});
  write_index(model / "model.safetensors.index.json",
              {{"a", "one.safetensors"}, {"b", "two.safetensors"}}, 12345);

  const Outcome result = mount({model});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 2) << result.err;
  EXPECT_TRUE(result.err.starts_with("stfs: ")) << result.err;
  EXPECT_NE(result.err.find("total_size"), std::string::npos) << result.err;
}

TEST_F(Sources, SeveralSourcesMakeOneNamespace) {
  const Mounted mounted({test_data("single/voices.safetensors"), test_data("sharded")});

  EXPECT_EQ(names_in(mounted.path()).size(), 38u);
  EXPECT_EQ(read_file(mounted / "tokens"),
            entries_of(test_data("single/voices.safetensors")).at("tokens").bytes());
  EXPECT_EQ(read_file(mounted / "int8_357"),
            entries_of(test_data("single/dtypes.safetensors")).at("int8_357").bytes());
}

TEST_F(Sources, ANameInTwoSourcesIsWrongUsage) {
  expect_refused(mount({test_data("single/dtypes.safetensors"), test_data("sharded")}), 2, {"_3"});
}

TEST_F(Sources, TwoFilesOfOneNameGetTwoHeaders) {
  std::filesystem::create_directory(dir_ / "x");
  std::filesystem::create_directory(dir_ / "y");
  write_safetensors(dir_ / "x/m.safetensors", {random_tensor("a", "U8", {1})});
  write_safetensors(dir_ / "y/m.safetensors", {random_tensor("b", "U8", {1})});

  const Mounted mounted({dir_ / "x/m.safetensors", dir_ / "y/m.safetensors"});

  EXPECT_EQ(names_in(mounted / ".stfs/header").size(), 2u);
}

TEST_F(Sources, TheLayoutOfTheHuggingFaceCache) {
  const std::filesystem::path repo = dir_ / "models--org--name";
  const std::filesystem::path snapshot = repo / "snapshots/x";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(repo / "blobs");
  const Tensor tensor = random_tensor("w", "U8", {100});
  write_safetensors(repo / "blobs/0a1b", {tensor});
  write_index(repo / "blobs/2c3d", {{"w", "model-00001-of-00001.safetensors"}});
  std::filesystem::create_symlink("../../blobs/0a1b",
                                  snapshot / "model-00001-of-00001.safetensors");
  std::filesystem::create_symlink("../../blobs/2c3d", snapshot / "model.safetensors.index.json");

  for (const auto& source : {snapshot, snapshot / "model.safetensors.index.json",
                             snapshot / "model-00001-of-00001.safetensors"}) {
    const Mounted mounted({source});
    EXPECT_EQ(read_file(mounted / "w"), tensor.bytes) << source;
    const auto locator = xattr(mounted / "w", "user.stfs.source");
    ASSERT_TRUE(locator);
    EXPECT_TRUE(locator->starts_with("/"));
    EXPECT_TRUE(std::filesystem::equivalent(*locator, repo / "blobs/0a1b"));
  }
}

TEST_F(Sources, ASymbolicLinkToADirectoryIsFollowed) {
  std::filesystem::create_directory_symlink(write_sharded(), dir_ / "link");
  const Mounted mounted({dir_ / "link"});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"a", "b"}));
}

TEST_F(Sources, ShardsInASubdirectoryAreFound) {
  std::filesystem::create_directories(dir_ / "m/parts");
  write_safetensors(dir_ / "m/parts/one.safetensors", {random_tensor("a", "U8", {10})});
  write_index(dir_ / "m/model.safetensors.index.json", {{"a", "parts/one.safetensors"}});
  const Mounted mounted({dir_ / "m"});
  EXPECT_EQ(names_in(mounted.path()), NameList{"a"});
}

TEST_F(Sources, AnIndexThatLeavesItsDirectoryIsRefused) {
  write_safetensors(dir_ / "evil.safetensors", {random_tensor("a", "U8", {10})});
  std::filesystem::create_directory(dir_ / "m");
  for (const std::string& shard :
       {std::string("../evil.safetensors"), std::string("x/../../evil.safetensors"),
        std::string(".."), (dir_ / "evil.safetensors").string(), std::string("/etc/passwd")}) {
    write_index(dir_ / "m/model.safetensors.index.json", {{"a", shard}});
    expect_refused(mount({dir_ / "m"}), 1, {"index.json"});
  }
}

TEST_F(Sources, AnIndexThatIsNoIndexIsRefused) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": ""}})", R"({"weight_map": {"a": "x\u0000y"}})"}) {
    write_file(dir_ / "model.safetensors.index.json", text);
    expect_refused(mount({dir_ / "model.safetensors.index.json"}), 1, {"index.json"});
  }
}

TEST_F(Sources, AMissingShardIsNamed) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  expect_refused(mount({model}), 3, {"two.safetensors"});
}

TEST_F(Sources, ADanglingLinkIsAMissingShard) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  std::filesystem::create_symlink("../blobs/gone", model / "two.safetensors");
  expect_refused(mount({model}), 3, {"two.safetensors"});
}

TEST_F(Sources, ATensorThatItsShardLacksIsNamed) {
  const std::filesystem::path model = write_sharded();
  write_index(model / "model.safetensors.index.json",
              {{"a", "one.safetensors"}, {"absent", "two.safetensors"}});
  expect_refused(mount({model}), 1, {"absent", "two.safetensors"});
}

TEST_F(Sources, AllowMissingMountsTheRestAndListsWhatIsMissing) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  write_index(model / "model.safetensors.index.json",
              {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"lacking", "one.safetensors"}});

  const Mounted mounted({model}, {"-o", "allow_missing"});

  EXPECT_EQ(names_in(mounted.path()), NameList{"a"});
  const nlohmann::json info = nlohmann::json::parse(read_file(mounted / ".stfs/info.json"));
  NameList missing;
  for (const auto& tensor : info.at("missing")) missing.push_back(tensor.at("name"));
  std::ranges::sort(missing);
  EXPECT_EQ(missing, (NameList{"b", "lacking"}));
}

TEST_F(Sources, AllowMissingStillRefusesABrokenShard) {
  const std::filesystem::path model = write_sharded();
  write_file(model / "two.safetensors", "short");
  expect_refused(mount({"-o", "allow_missing", model}), 1, {"two.safetensors"});
}

TEST_F(Sources, AFifoIsRefusedWithoutHanging) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  ASSERT_EQ(::mkfifo((model / "two.safetensors").c_str(), 0644), 0);

  expect_refused(mount({model}), 3, {"two.safetensors"});
  expect_refused(mount({model / "two.safetensors"}), 3, {"two.safetensors"});
}

TEST_F(Sources, AFifoAsAnIndexIsRefusedWithoutHanging) {
  ASSERT_EQ(::mkfifo((dir_ / "model.safetensors.index.json").c_str(), 0644), 0);
  expect_refused(mount({dir_ / "model.safetensors.index.json"}), 3, {"index.json"});
}

TEST_F(Sources, ADeviceIsRefused) { expect_refused(mount({"/dev/zero"}), 3, {"/dev/zero"}); }

TEST_F(Sources, ADirectoryAsAShardIsRefused) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  std::filesystem::create_directory(model / "two.safetensors");
  expect_refused(mount({model}), 3, {"two.safetensors"});
}

TEST_F(Sources, ALoopOfLinksIsRefused) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  std::filesystem::create_symlink("two.safetensors", model / "two.safetensors");
  expect_refused(mount({model}), 3, {"two.safetensors"});
  expect_refused(mount({model / "two.safetensors"}), 3, {"two.safetensors"});
}

TEST_F(Sources, AMissingSourceIsNamed) {
  expect_refused(mount({dir_ / "gone.safetensors"}), 3, {"gone.safetensors"});
}

TEST_F(Sources, ASourceWithoutPermissionIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write_safetensors(dir_ / "m.safetensors", {random_tensor("a", "U8", {1})});
  std::filesystem::permissions(dir_ / "m.safetensors", std::filesystem::perms::none);
  expect_refused(mount({dir_ / "m.safetensors"}), 3, {"m.safetensors"});
}

TEST_F(Sources, AFileThatBreaksTheFormatIsRefusedWithTheRulesName) {
  const std::string json = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const struct {
    std::string bytes;
    const char* rule;
  } cases[] = {
      {"", "HeaderTooSmall"},
      {std::string(8, '\xff'), "HeaderTooLarge"},
      {std::string("\x10\0\0\0\0\0\0\0", 8), "InvalidHeaderLength"},
      {safetensors_bytes("\xff\xff", ""), "InvalidHeader"},
      {safetensors_bytes("no json", ""), "InvalidHeaderDeserialization"},
      {safetensors_bytes(json, "abc"), "MetadataIncompleteBuffer"},
      {safetensors_bytes(json, "abcde"), "MetadataIncompleteBuffer"},
      {safetensors_bytes(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", "abcde"),
       "InvalidOffset"},
      {safetensors_bytes(R"({"w":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", "abcd"),
       "TensorInvalidInfo"},
  };
  for (const auto& [bytes, rule] : cases) {
    write_file(dir_ / "m.safetensors", bytes);
    expect_refused(mount({dir_ / "m.safetensors"}), 1, {"m.safetensors", rule});
  }
}

TEST_F(Sources, ATruncatedFileIsRefused) {
  std::filesystem::copy_file(test_data("single/voices.safetensors"), dir_ / "m.safetensors");
  std::filesystem::resize_file(dir_ / "m.safetensors", 200'000);
  expect_refused(mount({dir_ / "m.safetensors"}), 1, {"m.safetensors"});
}

TEST_F(Sources, ControlCharactersInNamesAreEscapedInMessages) {
  const std::string evil = "w\x1b[31m\n\r";
  std::string json = header_json({random_tensor(evil, "U8", {4})});
  write_file(dir_ / "m\n\x1b[2J.safetensors", safetensors_bytes(json, "abc"));
  write_safetensors(dir_ / "a.safetensors", {random_tensor(evil, "U8", {4})});
  write_safetensors(dir_ / "b.safetensors", {random_tensor(evil, "U8", {4})});

  const Outcome broken = mount({dir_ / "m\n\x1b[2J.safetensors"});
  const Outcome twice = mount({dir_ / "a.safetensors", dir_ / "b.safetensors"});

  expect_refused(broken, 1);
  expect_refused(twice, 2);
  EXPECT_EQ((broken.err + twice.err).find('\x1b'), std::string::npos);
  EXPECT_EQ((broken.err + twice.err).find('\r'), std::string::npos);
}

TEST_F(Sources, ASourceInsideTheMountpointIsRefusedOrSafe) {
  const Tensor tensor = random_tensor("w", "U8", {100'000});
  write_safetensors(mountpoint() / "m.safetensors", {tensor});

  const Outcome result = mount({mountpoint() / "m.safetensors"});

  if (result.status != 0) {
    expect_refused(result, result.status);
  } else {
    EXPECT_EQ(read_file(mountpoint() / "w"), tensor.bytes);
  }
}

TEST_F(Sources, TheMountpointAsASourceIsRefusedOrSafe) {
  const Tensor tensor = random_tensor("w", "U8", {100'000});
  write_safetensors(mountpoint() / "model.safetensors", {tensor});

  const Outcome result = mount({mountpoint()});

  if (result.status != 0) {
    expect_refused(result, result.status);
  } else {
    EXPECT_EQ(read_file(mountpoint() / "w"), tensor.bytes);
  }
}

}  // namespace
}  // namespace stfs::test
