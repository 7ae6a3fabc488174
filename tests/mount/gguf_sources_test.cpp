// GGUF files as sources: split files, files in directories and in an index, their metadata, and
// stfs-info.
#include "tests/gguf/gguf_file.h"
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using Json = nlohmann::json;
using GgufNames = std::vector<std::string>;

constexpr std::uint32_t kF32Id = 0, kI8Id = 24;

std::uint64_t stat_size(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : ~0ULL;
}

// Returns the name of a part. Parts are numbered from 1.
std::string part_name(int number, int count, const std::string& prefix = "m") {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%s-%05d-of-%05d.gguf", prefix.c_str(), number, count);
  return text.data();
}

void add_split_keys(GgufFile& file, int number, int count, int tensors) {
  file.key("split.no", ValueType::kU16, little(static_cast<std::uint16_t>(number - 1)));
  file.key("split.count", ValueType::kU16, little(static_cast<std::uint16_t>(count)));
  file.key("split.tensors.count", ValueType::kI32, little<std::int32_t>(tensors));
}

class GgufSources : public MountTest {
 protected:
  std::filesystem::path write(const std::string& name, const GgufFile& file) const {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_file(dir_ / name, file.bytes());
    return dir_ / name;
  }
  // Writes a file with one tensor of four bytes.
  std::filesystem::path write_one(const std::string& name, const std::string& tensor) const {
    GgufFile file;
    file.tensor(tensor, {4}, kI8Id, "abcd");
    return write(name, file);
  }
  // Writes three parts: metadata without tensors, then tensors a and b, then c. Returns the first.
  std::filesystem::path write_split() const {
    GgufFile first;
    first.key("general.architecture", "llama");
    first.key("tokens", ValueType::kArray,
              gguf_array(ValueType::kString, 2, gguf_string("x") + gguf_string("y")));
    add_split_keys(first, 1, 3, 3);
    GgufFile second;
    add_split_keys(second, 2, 3, 3);
    second.tensor("a", {4}, kI8Id, "aaaa");
    second.tensor("b", {2}, kI8Id, "bb");
    GgufFile third;
    add_split_keys(third, 3, 3, 3);
    third.tensor("c", {3}, kI8Id, "ccc");
    write(part_name(2, 3), second);
    write(part_name(3, 3), third);
    return write(part_name(1, 3), first);
  }
  static Outcome list(const std::filesystem::path& source) {
    return run({STFS_INFO_BINARY, "list", source});
  }
  static Json info_json(const Mounted& mount) {
    return Json::parse(read_file(mount / ".stfs/info.json"));
  }

  TempDir dir_;
};

// Split files

TEST_F(GgufSources, FirstPartOpensAllParts) {
  const Mounted mount({write_split()});

  EXPECT_EQ(names_in(mount.path()), (GgufNames{"a", "b", "c"}));
  EXPECT_EQ(read_file(mount / "b"), "bb");
  EXPECT_EQ(read_file(mount / "c"), "ccc");
  EXPECT_EQ(xattr(mount / "c", "user.stfs.source"), (dir_ / part_name(3, 3)).string());
  EXPECT_EQ(names_in(mount / ".stfs/header").size(), 3U);
  EXPECT_EQ(names_in(mount / ".stfs/metadata"), (GgufNames{"general.architecture", "tokens"}));
  const Json info = info_json(mount);
  EXPECT_EQ(info.at("tensors"), 3);
  EXPECT_EQ(info.at("sources").size(), 3U);
  EXPECT_EQ(info.at("metadata_conflicts"), Json::array());
  EXPECT_EQ(info.at("missing"), Json::array());
}

TEST_F(GgufSources, FollowsSymlinksOfHubCacheToParts) {
  write_split();
  std::filesystem::create_directories(dir_ / "snapshot");
  for (int i = 1; i <= 3; ++i) {
    const std::string blob = "blob" + std::to_string(i);
    std::filesystem::rename(dir_ / part_name(i, 3), dir_ / blob);
    std::filesystem::create_symlink("../" + blob, dir_ / "snapshot" / part_name(i, 3));
  }
  const Mounted mount({dir_ / "snapshot" / part_name(1, 3)});
  EXPECT_EQ(names_in(mount.path()), (GgufNames{"a", "b", "c"}));
  const Mounted directory({dir_ / "snapshot"});
  EXPECT_EQ(names_in(directory.path()), (GgufNames{"a", "b", "c"}));
}

TEST_F(GgufSources, ExtractNeverReplacesPartOfMountedSplitFile) {
  const std::filesystem::path first = write_split();
  const std::string other = write_one(part_name(2, 3, "n"), "other");
  const Mounted mount({first});
  for (const char* const source : {"", ".stfs/merged.gguf", ".stfs/subset/*.gguf"}) {
    for (int part = 1; part <= 3; ++part) {
      const std::filesystem::path output = dir_ / part_name(part, 3);
      const std::string before = read_file(output);
      expect_one_line(info({"extract", "--force", mount / source, "*", "-o", output}), 2,
                      output.string() + ": a file of the source: choose another name");
      EXPECT_EQ(read_file(output), before) << source;
    }
    const Outcome written = info({"extract", "--force", mount / source, "*", "-o", other});
    EXPECT_EQ(written.status, 0) << "a part of another split file: " << written.err;
  }
}

TEST_F(GgufSources, DirectoryOfMountedSplitFileKeepsMetadataOfFirstPart) {
  GgufFile first;
  first.key("general.architecture", "llama");
  add_split_keys(first, 1, 3, 2);
  write(part_name(1, 3), first);
  for (int i = 2; i <= 3; ++i) {
    GgufFile part;
    add_split_keys(part, i, 3, 2);
    part.tensor(i == 2 ? "x/a" : "y/b", {4}, kI8Id, "aaaa");
    write(part_name(i, 3), part);
  }
  const Mounted mount({dir_ / part_name(1, 3)});
  for (const char* path : {"x", ".stfs/tree/x"}) {
    const Mounted again({mount / path});
    EXPECT_EQ(names_in(again / ".stfs/metadata"), GgufNames{"general.architecture"}) << path;
    EXPECT_NE(read_file(again / ".stfs/merged.gguf").find("llama"), std::string::npos) << path;
    EXPECT_EQ(info_json(again).at("tensors"), 1) << path;
  }
}

TEST_F(GgufSources, FirstPartGivesShapesToTensorsOfOtherParts) {
  const auto shape = [](const std::vector<std::int32_t>& dims) {
    std::string elements;
    for (const std::int32_t dim : dims) elements += little(dim);
    return gguf_array(ValueType::kI32, dims.size(), elements);
  };
  GgufFile first, second;
  first.key("comfy.gguf.orig_shape.own", ValueType::kArray, shape({4, 2}));
  first.key("comfy.gguf.orig_shape.w", ValueType::kArray, shape({2, 2, 2, 2, 2}));
  add_split_keys(first, 1, 2, 2);
  second.key("comfy.gguf.orig_shape.own", ValueType::kArray, shape({2, 4}));
  add_split_keys(second, 2, 2, 2);
  second.tensor("own", {8}, kI8Id, "abcdefgh");
  second.tensor("w", {32}, kI8Id, std::string(32, 'w'));
  write(part_name(2, 2), second);
  const Mounted mount({write(part_name(1, 2), first)});
  const auto expect_shapes = [](const Mounted& shown) {
    EXPECT_EQ(xattr(shown / "own", "user.stfs.shape"), "[2,4]");
    EXPECT_EQ(xattr(shown / "w", "user.stfs.shape"), "[2,2,2,2,2]");
  };
  expect_shapes(mount);

  const std::string merged = read_file(mount / ".stfs/merged.gguf");

  EXPECT_EQ(merged.find("orig_shape.own"), merged.rfind("orig_shape.own"));
  EXPECT_NE(merged.find(gguf_string("w") + little<std::uint32_t>(1) + little<std::uint64_t>(32)),
            std::string::npos);
  write_file(dir_ / "merged.gguf", merged);
  expect_shapes(Mounted({dir_ / "merged.gguf"}));
}

TEST_F(GgufSources, NamesFirstOfManyMissingParts) {
  GgufFile first;
  add_split_keys(first, 1, 65535, 65534);
  const std::filesystem::path path = write(part_name(1, 65535), first);
  GgufFile second;
  add_split_keys(second, 2, 65535, 65534);
  for (int i = 2; i <= 70; ++i) {
    GgufFile part;
    add_split_keys(part, i, 65535, 65534);
    write(part_name(i, 65535), part);
  }
  write(part_name(100, 65535), second);
  expect_one_line(
      list(path), 3,
      "part \"" + part_name(71, 65535) + "\": missing, and 65463 more parts: download them");
}

TEST_F(GgufSources, RejectsLaterPartAndNamesFirst) {
  write_split();
  expect_one_line(
      list(dir_ / part_name(2, 3)), 1,
      part_name(2, 3) + ": part 2 of 3: name \"" + part_name(1, 3) + "\", from which stfs finds");
  std::filesystem::rename(dir_ / part_name(1, 3), dir_ / "sha256-01");
  expect_one_line(list(dir_ / "sha256-01"), 1, "its name must end in -00001-of-00003.gguf");
}

TEST_F(GgufSources, NamesMissingPart) {
  const std::filesystem::path first = write_split();
  std::filesystem::remove(dir_ / part_name(3, 3));
  expect_one_line(list(first), 3,
                  part_name(1, 3) + ": part \"" + part_name(3, 3) +
                      "\": missing: download it; --allow-missing reads the rest");
  std::filesystem::remove(dir_ / part_name(2, 3));
  expect_one_line(list(first), 3,
                  "part \"" + part_name(2, 3) + "\": missing, and 1 more part: download them");
}

TEST_F(GgufSources, AllowMissingMountsOtherPartsAndListsMissingOnes) {
  const std::filesystem::path first = write_split();
  std::filesystem::remove(dir_ / part_name(2, 3));

  const Mounted mount({first}, {"-o", "allow_missing"});

  EXPECT_EQ(names_in(mount.path()), GgufNames{"c"});
  EXPECT_EQ(info_json(mount).at("missing"),
            Json::array({{{"name", nullptr}, {"source", part_name(2, 3)}}}));
  const Outcome info = run({STFS_INFO_BINARY, "info", "--allow-missing", first});
  EXPECT_EQ(info.status, 0) << info.err;
  EXPECT_NE(info.out.find("missing: part \"" + part_name(2, 3) + "\"\n"), std::string::npos);
  EXPECT_NE(info.out.find("2 of 3 tensors are in parts that are missing\n"), std::string::npos)
      << info.out;
}

// Directories

TEST_F(GgufSources, DirectoryOpensItsOnlyCheckpointAndPrefersSafetensors) {
  write_one("d/x.gguf", "w");
  write_file(dir_ / "d/config.json", "{}");
  const Mounted single({dir_ / "d"});
  EXPECT_EQ(names_in(single.path()), GgufNames{"w"});
  write_split();
  const Mounted split({dir_.path()});
  EXPECT_EQ(names_in(split.path()), (GgufNames{"a", "b", "c"}));
  write_safetensors(dir_ / "adapter.safetensors", {random_tensor("this", "U8", {1})});
  const Mounted safetensors({dir_.path()});
  EXPECT_EQ(names_in(safetensors.path()), GgufNames{"this"});
}

TEST_F(GgufSources, RejectsDirectoryWithSeveralCheckpointsAndListsThem) {
  write_split();
  for (const char* name : {"q8.gguf", "q4.gguf"}) write_one(name, "w");
  expect_one_line(list(dir_.path()), 3,
                  "more than one checkpoint in this directory, name one: " + part_name(1, 3) +
                      ", q4.gguf, q8.gguf\n");
  for (const char* name : {"a", "b"}) {
    write_safetensors(dir_ / (std::string(name) + ".safetensors"), {random_tensor("t", "U8", {1})});
  }
  expect_one_line(list(dir_.path()), 3,
                  "name one: a.safetensors, b.safetensors, " + part_name(1, 3) + ", q4.gguf");
}

TEST_F(GgufSources, NamesMissingFirstPart) {
  write_split();
  std::filesystem::remove(dir_ / part_name(1, 3));
  const std::string rule =
      part_name(2, 3) + ": part \"" + part_name(1, 3) + "\": missing: download it\n";
  expect_one_line(list(dir_.path()), 3, rule);
  expect_one_line(list(dir_ / part_name(2, 3)), 3, rule);
}

TEST_F(GgufSources, IndexMayMapTensorsToGgufFile) {
  write_one("w.gguf", "w");
  write_safetensors(dir_ / "v.safetensors", {random_tensor("v", "U8", {1})});
  write_index(dir_ / "model.safetensors.index.json", {{"w", "w.gguf"}, {"v", "v.safetensors"}});
  const Mounted mount({dir_.path()});
  EXPECT_EQ(read_file(mount / "w"), "abcd");
}

// Metadata

TEST_F(GgufSources, LongMetadataArrayIsReadableFromAnyOffset) {
  std::string elements;
  Json expected = Json::array();
  const auto add = [&](const std::string& text) {
    elements += gguf_string(text);
    expected.push_back(text);
  };
  for (int i = 0; i < 20'000; ++i) add("token " + std::to_string(i));
  std::string umlauts = "x";
  while (umlauts.size() < 300'000) umlauts += "\xC3\xA4\"";
  add(umlauts);  // longer than one step of the reader
  for (int i = 0; i < 20'000; ++i) add(std::string(static_cast<std::size_t>(i % 40), '\n'));
  std::string numbers;
  Json expected_numbers = Json::array();
  for (int i = 0; i < 100'000; ++i) {
    numbers += little<std::int32_t>(i * 12'345);
    expected_numbers.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(i) * 12'345U));
  }
  GgufFile file;
  file.key("tokens", ValueType::kArray, gguf_array(ValueType::kString, expected.size(), elements));
  file.key("numbers", ValueType::kArray, gguf_array(ValueType::kI32, 100'000, numbers));
  const Mounted mount({write("m.gguf", file)});
  const std::filesystem::path tokens = mount / ".stfs/metadata/tokens";

  EXPECT_EQ(stat_size(tokens), expected.dump().size());
  EXPECT_TRUE(read_file(tokens) == expected.dump());
  EXPECT_TRUE(read_file(mount / ".stfs/metadata/numbers") == expected_numbers.dump());
  // Reads from any offset, including offsets that the kernel has not cached.
  for (const std::uint64_t offset : {1ULL, 65'535ULL, 400'001ULL}) {
    const Outcome part = run({"dd", "if=" + tokens.string(), "bs=1000", "count=1",
                              "iflag=skip_bytes", "skip=" + std::to_string(offset), "status=none"});
    EXPECT_EQ(part.out, expected.dump().substr(offset, 1000)) << offset;
  }
}

TEST_F(GgufSources, LongMetadataStringIsReadFromFile) {
  GgufFile file;
  const std::string text = std::string(20U << 20, 'a') + "z";
  file.key("long", text);
  const Mounted mount({write("m.gguf", file)});

  EXPECT_EQ(stat_size(mount / ".stfs/metadata/long"), text.size());
  EXPECT_TRUE(read_file(mount / ".stfs/metadata/long") == text);
  EXPECT_EQ(info_json(mount).at("metadata").at("long"), (Json{{"string", text.size()}}));
}

TEST_F(GgufSources, DifferentTypeOrArrayIsMetadataConflict) {
  const auto write_keys = [this](const std::string& name, ValueType type, const std::string& last) {
    GgufFile file;
    file.key("alike", ValueType::kU32, little<std::uint32_t>(7));
    file.key("type", type, little<std::uint32_t>(7));
    for (const auto& [key, text] :
         {std::pair<std::string, std::string>{"array", last}, {"same", std::string("x")}}) {
      file.key(key, ValueType::kArray,
               gguf_array(ValueType::kString, 2, gguf_string("first") + gguf_string(text)));
    }
    file.tensor(name, {1}, kF32Id, "wxyz");
    return write(name + ".gguf", file);
  };

  const Mounted mount(
      {write_keys("a", ValueType::kU32, "x"), write_keys("b", ValueType::kI32, "y")});

  EXPECT_EQ(info_json(mount).at("metadata_conflicts"), (Json{"array", "type"}));
  EXPECT_EQ(names_in(mount / ".stfs/metadata"), (GgufNames{"alike", "same"}));
  EXPECT_EQ(read_file(mount / ".stfs/metadata/same"), R"(["first","x"])");
}

// stfs-info

TEST_F(GgufSources, EveryVerbReadsASplitFile) {
  const std::string first = write_split();
  const auto out = [](std::vector<std::string> arguments) {
    const Outcome result = info(std::move(arguments));
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  EXPECT_NE(
      out({"info", first}).find("general.architecture  llama\ntokens                [2 string]"),
      std::string::npos)
      << out({"info", first});
  EXPECT_EQ(Json::parse(out({"info", "--json", first})).at("metadata").at("tokens").at("length"),
            2);
  EXPECT_NE(out({"list", first}).find("c\tI8"), std::string::npos) << out({"list", first});
  EXPECT_NE(out({"show", first, "c"}).find(part_name(3, 3)), std::string::npos);
  EXPECT_EQ(out({"cat", first, "b"}), "bb");
  EXPECT_NE(out({"hash", first, "a"}).find("  a\n"), std::string::npos);
  EXPECT_NE(out({"stats", first, "c"}).find("99"), std::string::npos) << out({"stats", first, "c"});
  EXPECT_EQ(out({"check", first}), first + "\tok\t3 tensors\n");
}

TEST_F(GgufSources, CheckOfDirectoryChecksEachCheckpointOnce) {
  write_split();
  write_one("q4.gguf", "w");
  write_file(dir_ / "q8.gguf", "GGUF");

  const Outcome result = info({"check", dir_.path()});

  const std::string at = dir_.path().string() + "/";
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(result.out.starts_with(at + part_name(1, 3) + "\tok\t3 tensors\n" + at +
                                     "q4.gguf\tok\t1 tensor\n" + at +
                                     "q8.gguf\terror\tGgufTruncated\t"))
      << result.out;
}

TEST_F(GgufSources, MountDirectoryWithInvalidUtf8NameIsSource) {
  const Mounted mount({write_one("m.gguf", "d\xFF/w")});
  const Mounted inner({mount / "d\xFF"});
  const Mounted innermost({inner.path()});

  EXPECT_EQ(read_file(innermost / "d\xFF/w"), "abcd");
}

TEST_F(GgufSources, InvalidUtf8TensorNameWorksAndJsonStaysValid) {
  const std::string name = "w\xFF";
  const std::string file = write_one("m.gguf", name);
  const Mounted mount({file});

  EXPECT_EQ(names_in(mount.path()), GgufNames{name});
  EXPECT_EQ(read_file(mount / name), "abcd");
  EXPECT_EQ(xattr(mount / name, "user.stfs.name"), name);
  for (const std::string path : {".stfs/tensors.json", ".stfs/info.json"}) {
    EXPECT_TRUE(Json::accept(read_file(mount / path))) << path;
  }
  EXPECT_TRUE(Json::accept(read_file(mount / ".stfs/json" / (name + ".json"))));
  EXPECT_EQ(read_file(mount / ".stfs/slice" / name / "1:3"), "bc");
  for (const char* verb : {"list", "show", "hash", "stats"}) {
    const Outcome result = info({verb, "--json", file, "*"});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(Json::accept(result.out)) << result.out;
    EXPECT_EQ(info({verb, file, "*"}).status, 0) << verb;
  }
  EXPECT_EQ(info({"cat", file, name}).out, "abcd");
}

TEST_F(GgufSources, InvalidUtf8KeysHaveFilesButAreNotInInfoJson) {
  GgufFile file;
  file.key("a\xFF", "first");
  file.key("a\xFE", "second");
  file.key("a\xEF\xBF\xBD", "third");
  file.tensor("w", {1}, 0, "1234");
  write_file(dir_ / "m.gguf", file.bytes());
  const Mounted mount({dir_ / "m.gguf"});

  const auto metadata = Json::parse(read_file(mount / ".stfs/info.json")).at("metadata");

  EXPECT_EQ(metadata, (Json{{"a\xEF\xBF\xBD", "third"}}));
  EXPECT_EQ(read_file(mount / ".stfs/metadata/a\xFF"), "first");
  EXPECT_EQ(read_file(mount / ".stfs/metadata/a\xFE"), "second");
}

TEST_F(GgufSources, JsonOnTerminalEscapesControlCharacters) {
  const std::string name = "a\u009b2J\x7f\u202eb";
  const std::string file = write_one("m.gguf", name);
  for (const char* verb : {"list", "show", "hash", "stats"}) {
    const Outcome shown =
        run({STFS_INFO_BINARY, verb, "--json", file, "*"}, {.terminal_columns = 80});
    EXPECT_EQ(shown.status, 0) << verb;
    EXPECT_NE(shown.out.find(R"("a\u009b2J\u007f\u202eb")"), std::string::npos) << shown.out;
    EXPECT_EQ(shown.out.find("\u009b"), std::string::npos) << verb;
    EXPECT_NE(info({verb, "--json", file, "*"}).out.find(name), std::string::npos) << verb;
  }
}

TEST_F(GgufSources, ReportsGgufNameWithoutGgufContent) {
  write_file(dir_ / "m.gguf", std::string(100, '\xA5'));

  const Outcome refused = info({"list", (dir_ / "m.gguf").string()});

  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("m.gguf: the file has the name of a GGUF file and does not begin with "
                             "GGUF (download it again): "),
            std::string::npos)
      << refused.err;
}

}  // namespace
}  // namespace stfs::test
