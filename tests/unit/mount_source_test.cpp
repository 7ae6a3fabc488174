// What the root of a mount says that it was opened with: the text, and hostile texts.
#include "core/checkpoint/mount_source.h"

#include "core/checkpoint/checkpoint.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

constexpr const char* kVersion = R"("version":"0")";

TEST(MountJson, NamesGivenSourcesAsAbsolutePaths) {
  const TempDir dir;
  write_safetensors(dir / "a b\n.safetensors", {random_tensor("w", "U8", {4})});
  std::filesystem::create_symlink("a b\n.safetensors", dir / "link");
  const Checkpoint checkpoint(std::vector<std::string>{dir / "link"});

  EXPECT_EQ(checkpoint.origins(), std::vector<std::string>{dir / "link"});
  EXPECT_EQ(version_of(checkpoint.list()).size(), 64u);
}

TEST(MountJson, DescribesHowMountWasOpened) {
  const MountContent told{.sources = {"/a b\n", "/\xff\n\"", "hf://org/name"},
                          .allow_missing = true,
                          .layers = {{"dequantize", "bf16"}, {"lora", "0.5@/a"}, {"lora", "/\xff"}},
                          .version = "0"};

  const auto content = parse_mount_json(mount_json(told));

  ASSERT_TRUE(content);
  EXPECT_EQ(content->sources, told.sources);
  EXPECT_TRUE(content->allow_missing);
  EXPECT_EQ(content->layers, told.layers);
  EXPECT_EQ(content->version, "0");
}

TEST(MountJson, VersionDependsOnBytesPathsAndOrder) {
  const TempDir dir;
  write_safetensors(dir / "a", {random_tensor("a", "U8", {4})});
  write_safetensors(dir / "b", {random_tensor("b", "U8", {4})});
  const auto version = [](std::vector<std::string> sources) {
    return version_of(Checkpoint(sources).list());
  };
  const std::string before = version({dir / "a", dir / "b"});

  EXPECT_EQ(version({dir / "a", dir / "b"}), before);
  EXPECT_NE(version({dir / "b", dir / "a"}), before);
  EXPECT_NE(version({dir / "a"}), before);
  write_safetensors(dir / "b", {random_tensor("b", "U8", {5})});
  EXPECT_NE(version({dir / "a", dir / "b"}), before);
}

TEST(MountJson, VersionDependsOnIndexedTensors) {
  const TempDir dir;
  write_safetensors(dir / "1.safetensors",
                    {random_tensor("a", "U8", {4}), random_tensor("b", "U8", {4}),
                     random_tensor("c", "U8", {4})});
  const auto version = [&](const std::map<std::string, std::string>& map) {
    write_index(dir / "model.safetensors.index.json", map);
    return version_of(Checkpoint(std::vector<std::string>{dir.path().string()}).list());
  };
  const std::string all =
      version({{"a", "1.safetensors"}, {"b", "1.safetensors"}, {"c", "1.safetensors"}});
  const std::string two = version({{"a", "1.safetensors"}, {"b", "1.safetensors"}});

  EXPECT_NE(two, all);
  EXPECT_NE(version({{"a", "1.safetensors"}, {"c", "1.safetensors"}}), two);
  EXPECT_EQ(version({{"a", "1.safetensors"}, {"b", "1.safetensors"}}), two);
}

TEST(MountJson, OmitsSecretsInLayerUrls) {
  const std::string json =
      mount_json({.sources = {"/m.safetensors"},
                  .layers = {{"delta", "https://host/run/weight_v000001?sig=secret"},
                             {"lora", "0.5@https://me:secret@host/adapter?secret"},
                             {"edit", "/w/edits\nadd \"s3://bucket/a?b.safetensors::w\""}},
                  .version = "0"});

  EXPECT_EQ(json.find("secret"), std::string::npos) << json;
  EXPECT_NE(json.find(R"(["0.5@https://host/adapter"])"), std::string::npos) << json;
  EXPECT_NE(json.find("a?b.safetensors"), std::string::npos) << json;
}

TEST(MountJson, RejectsInvalidText) {
  const auto with_sources = [](const std::string& sources) {
    return R"({"sources":)" + sources + R"(,"allow_missing":false,)" + kVersion + "}";
  };
  ASSERT_TRUE(parse_mount_json(with_sources(R"(["/a"])")));
  for (const std::string& text : std::vector<std::string>{
           "",
           "{}",
           "[]",
           "null",
           "\"",
           std::string("\0", 1),
           "{\"sources\":[\"/a\"]",
           R"({"sources":["/a"],"version":"0"})",
           R"({"sources":["/a"],"allow_missing":false})",
           R"({"allow_missing":false,"version":"0"})",
           R"({"sources":["/a"],"allow_missing":0,"version":"0"})",
           R"({"sources":["/a"],"allow_missing":false,"version":0})",
           R"({"sources":["/a"],"allow_missing":false,"version":"0","dequantize":"q4"})",
           with_sources("{}"),
           with_sources("[]"),
           with_sources("\"/a\""),
           with_sources("[1]"),
           with_sources("[null]"),
           with_sources("[[]]"),
           with_sources(R"([""])"),
           with_sources(R"(["a"])"),
           with_sources(R"(["/a\u0000b"])"),
           with_sources("[\"/\xff\"]"),
           with_sources(R"([{"hex":"2f6"}])"),
           with_sources(R"([{"hex":"2fzz"}])"),
           with_sources(R"([{"hex":"61"}])"),
           with_sources(R"([{"hex":"2f00"}])"),
           with_sources(R"([{"hex":1}])"),
           with_sources(R"([{"hex":"2f61","more":1}])"),
           R"({"sources":["/a"],"allow_missing":false,"version":"0","lora":"/a"})",
           R"({"sources":["/a"],"allow_missing":false,"version":"0","lora":[]})",
           with_sources(R"([{"sources":["/a"],"allow_missing":false,"within":"x"}])"),
           with_sources(std::string(60'000, '[')),
           with_sources(std::string(30'000, '[') + std::string(30'000, ']'))}) {
    EXPECT_FALSE(parse_mount_json(text)) << text;
  }
}

TEST(IsAtOrBelow, ComparesWholePathComponents) {
  EXPECT_TRUE(is_at_or_below("a/b", "a/b"));
  EXPECT_TRUE(is_at_or_below("a/b/c", "a/b"));
  EXPECT_FALSE(is_at_or_below("a/bc", "a/b"));
  EXPECT_FALSE(is_at_or_below("a", "a/b"));
}

}  // namespace
}  // namespace stfs::test
