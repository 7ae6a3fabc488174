// Tests of loading each kind of SOURCE: files, indexes, directories and several sources.
#include "core/checkpoint/checkpoint.h"

#include "core/base/error.h"
#include "core/stored/directory.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

// The error of a failed load.
struct Refusal {
  ErrorCode code;
  std::string message;
};

class CheckpointTest : public ::testing::Test {
 protected:
  std::string at(std::string_view name) const { return (dir_ / name).string(); }

  // Writes a file with one-byte tensors of these names.
  void write(const std::string& name, const std::vector<std::string>& tensors,
             const std::optional<Metadata>& metadata = std::nullopt) const {
    fs::create_directories((dir_ / name).parent_path());
    std::vector<Tensor> list;
    for (const std::string& tensor : tensors) list.push_back({tensor, "U8", {1}, "x"});
    write_safetensors(dir_ / name, list, metadata);
  }

  std::optional<Refusal> refusal(const std::vector<std::string>& sources,
                                 const LoadOptions& options = {}) const {
    try {
      const Checkpoint checkpoint(sources, options);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return Refusal{error.code(), error.what()};
    }
    return std::nullopt;
  }

  void expect_refused(const std::vector<std::string>& sources, ErrorCode code, int status,
                      const std::string& message, const LoadOptions& options = {}) const {
    const auto refused = refusal(sources, options);
    ASSERT_TRUE(refused) << "the checkpoint was loaded";
    EXPECT_EQ(error_name(refused->code), error_name(code)) << refused->message;
    EXPECT_EQ(exit_status(refused->code), status);
    EXPECT_NE(refused->message.find(message), std::string::npos) << refused->message;
  }

  static std::vector<std::string> names_of(const Checkpoint& checkpoint) {
    std::vector<std::string> names;
    for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
      names.emplace_back(checkpoint.tensor(i).name);
    }
    return names;
  }
  static std::vector<std::string> labels_of(const Checkpoint& checkpoint) {
    std::vector<std::string> labels;
    for (const Part& part : checkpoint.parts()) labels.push_back(part.label);
    return labels;
  }

  using Strings = std::vector<std::string>;
  TempDir dir_;
};

TEST_F(CheckpointTest, LoadsTensorsFromFile) {
  write_safetensors(dir_ / "m.safetensors",
                    {{"b", "U8", {3}, "abc"}, {"a/c", "F16", {1, 2}, "wxyz"}});

  const Checkpoint checkpoint(Strings{at("m.safetensors")});

  ASSERT_EQ(checkpoint.tensor_count(), 2U);
  const stfs::Tensor tensor = checkpoint.tensor(1);
  EXPECT_EQ(tensor.name, "a/c");
  EXPECT_EQ(tensor.path, "a/c");
  EXPECT_EQ(tensor.dtype, DType::kF16);
  EXPECT_EQ(Shape(tensor.shape.begin(), tensor.shape.end()), (Shape{1, 2}));
  EXPECT_EQ(tensor.elements(), 2U);
  EXPECT_EQ(tensor.length, 4U);
  EXPECT_EQ(read_file(tensor.locator->source->path()).substr(tensor.locator->offset, tensor.length),
            "wxyz");
  EXPECT_EQ(labels_of(checkpoint), Strings{"m.safetensors"});
  EXPECT_TRUE(checkpoint.warnings().empty());
}

// aria2 and browsers leave such a file next to an incomplete file, which may already have its full
// size.
TEST_F(CheckpointTest, WarnsAboutUnfinishedDownload) {
  write("m.safetensors", {"a"});
  write("1.safetensors", {"b"});
  write_index(dir_ / "m.safetensors.index.json", {{"b", "1.safetensors"}}, 1);
  fs::create_directory(dir_ / "links");
  fs::create_symlink("../1.safetensors", dir_ / "links/1.safetensors");
  const auto warned = [&](const std::string& source) {
    std::string lines;
    LoadOptions options;
    options.warn = [&](const std::string& line) { lines += line + "\n"; };
    options.warns_of_refused_alone = true;  // as `check` asks
    const Checkpoint checkpoint(Strings{at(source)}, options);
    return lines;
  };
  for (const char* end : {".aria2", ".part", ".incomplete", ".crdownload"}) {
    for (const char* file : {"m.safetensors", "1.safetensors"}) write_file(at(file) + end, "x");
    EXPECT_NE(warned("m.safetensors")
                  .find("m.safetensors: \"m.safetensors" + std::string(end) +
                        "\" beside it belongs to an unfinished download"),
              std::string::npos);
    for (const char* source : {"m.safetensors.index.json", "links/1.safetensors"}) {
      EXPECT_NE(warned(source).find("\"1.safetensors" + std::string(end) + "\" beside it"),
                std::string::npos)
          << source;
    }
    for (const char* file : {"m.safetensors", "1.safetensors"}) fs::remove(at(file) + end);
    EXPECT_EQ(warned("m.safetensors") + warned("m.safetensors.index.json"), "");
  }
}

TEST_F(CheckpointTest, AcceptsIndexOfVariant) {
  const auto variant = [&](const std::string& directory, const std::string& index,
                           const std::string& shard) {
    fs::create_directory(dir_ / directory);
    write(directory + "/" + shard, {"a", "b"});
    write_index(dir_ / directory / index, {{"a", shard}}, 1);
    for (const std::string& source : {directory, directory + "/" + index}) {
      EXPECT_EQ(names_of(Checkpoint(Strings{at(source)})), Strings{"a"}) << source;
    }
  };
  variant("transformers", "model.safetensors.index.fp16.json",
          "model.fp16-00001-of-00001.safetensors");
  variant("diffusers", "diffusion_pytorch_model.safetensors.fp16.index.json",
          "diffusion_pytorch_model-00001-of-00001.fp16.safetensors");
  // A complete file, and an index without a variant, are preferred.
  write("transformers/model.safetensors", {"whole"});
  EXPECT_EQ(names_of(Checkpoint(Strings{at("transformers")})), Strings{"whole"});
  write("diffusers/1.safetensors", {"plain"});
  write_index(dir_ / "diffusers/diffusion_pytorch_model.safetensors.index.json",
              {{"plain", "1.safetensors"}}, 1);
  EXPECT_EQ(names_of(Checkpoint(Strings{at("diffusers")})), Strings{"plain"});
  EXPECT_TRUE(is_index_name("diffusion_pytorch_model.bin.index.json") &&
              is_index_name("pytorch_model.bin.index.fp16.json"));
  EXPECT_FALSE(is_index_name("model.safetensors.json") || is_index_name("model.index.json") ||
               is_index_name("x.bin.json"));
}

TEST_F(CheckpointTest, OutdatedIndexErrorNamesOtherShards) {
  write("model-00001-of-00002.safetensors", {"a"});
  write("model-00002-of-00002.safetensors", {"b"});
  write_index(dir_ / "model.safetensors.index.json", {{"a", "model-00001-of-00030.safetensors"}},
              1);
  expect_refused(Strings{at("model.safetensors.index.json")}, ErrorCode::kMissingShard, 3,
                 "(the directory has \"model-00001-of-00002.safetensors\", and 1 more shard, which "
                 "the index does not name:"
                 " is it the index of another download?)");
}

TEST_F(CheckpointTest, RejectsDirectoryOfShardsWithoutIndex) {
  for (const std::string first :
       {"model-00001-of-00002.safetensors", "model.fp16-00001-of-00002.safetensors",
        "pytorch_model-00001-of-00002.bin",
        "diffusion_pytorch_model-00001-of-00002.fp16.safetensors"}) {
    write(first + "/" + first, {"a"});
    expect_refused(
        Strings{at(first)}, ErrorCode::kUnreadable, 3,
        "\"" + first + "\" is one of several shards, and their index *.index.json is missing");
    EXPECT_EQ(names_of(Checkpoint(Strings{at(first + "/" + first)})), Strings{"a"});
    std::string second = first;
    second.replace(second.find("00001"), 5, "00002");
    write(first + "/" + second, {"b"});
    expect_refused(
        Strings{at(first)}, ErrorCode::kUnreadable, 3,
        "(they look like the shards of one checkpoint, whose index *.index.json is missing");
  }
  write("one/model-00001-of-00001.safetensors", {"a"});
  EXPECT_EQ(names_of(Checkpoint(Strings{at("one")})), Strings{"a"});
}

TEST_F(CheckpointTest, WarnsIfEmptyIndexHasShardsNextToIt) {
  write_index(dir_ / "model.safetensors.index.json", {}, 0);
  EXPECT_EQ(Checkpoint(Strings{at(".")}).warnings(), Strings{});
  write("model-00001-of-00002.safetensors", {"a"});
  const Checkpoint checkpoint(Strings{at(".")});
  ASSERT_EQ(checkpoint.warnings().size(), 1U);
  EXPECT_NE(checkpoint.warnings()[0].find("the index names no tensor (the directory has \"model-"),
            std::string::npos)
      << checkpoint.warnings()[0];
}

TEST_F(CheckpointTest, FindsTensorByName) {
  write("1.safetensors", {"m", "", "z"});
  write("2.safetensors", {"a", "\u00e9"});

  const Checkpoint checkpoint(Strings{at("1.safetensors"), at("2.safetensors")});

  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(checkpoint.find(checkpoint.tensor(i).name), i);
  for (const char* name : {"b", "zz", "M", "a/b"}) EXPECT_EQ(checkpoint.find(name), std::nullopt);
}

TEST_F(CheckpointTest, NumbersTensorsBySourceThenByOffset) {
  write("1.safetensors", {"z", "y"});
  write("2.safetensors", {"b", "a"});

  const Checkpoint checkpoint(Strings{at("2.safetensors"), at("1.safetensors")});

  EXPECT_EQ(names_of(checkpoint), (Strings{"b", "a", "z", "y"}));
}

TEST_F(CheckpointTest, LoadsFileWithAnyName) {
  write("blob", {"a"});

  EXPECT_EQ(names_of(Checkpoint(Strings{at("blob")})), Strings{"a"});
}

TEST_F(CheckpointTest, LoadsFileWithoutTensors) {
  write("m.safetensors", {});

  const Checkpoint checkpoint(Strings{at("m.safetensors")});

  EXPECT_EQ(checkpoint.tensor_count(), 0U);
  EXPECT_EQ(checkpoint.find(""), std::nullopt);
  EXPECT_EQ(checkpoint.tree().directory_count(), 1U);
}

// Tests of directories.

// A file `x.safetensors` has the tensor "x". An index maps the tensor of one file.
TEST_F(CheckpointTest, LoadsUsualOrOnlyIndexElseFileOfDirectory) {
  const struct {
    Strings files;
    std::vector<std::pair<std::string, std::string>> indexes;
    std::string expected;  // the tensor, or, if it contains a space, the message
  } kRows[] = {
      {{"model", "s"}, {{"model", "s"}, {"other", "model"}}, "s"},
      {{"model", "s"}, {{"other", "s"}}, "s"},
      {{"model", "another"}, {}, "model"},
      {{"whatever"}, {}, "whatever"},
      {{}, {}, "no .safetensors file, no .gguf file and no index in this directory"},
      {{"b", "a"}, {}, "a.safetensors, b.safetensors"},
      {{"model"},
       {{"x", "model"}, {"y", "model"}},
       "x.safetensors.index.json, y.safetensors.index.json"},
  };
  for (const auto& [files, indexes, expected] : kRows) {
    SCOPED_TRACE(expected);
    fs::remove_all(dir_ / "d");
    fs::create_directory(dir_ / "d");
    write_file(dir_ / "d/config.json", "{}");
    for (const std::string& name : files) write("d/" + name + ".safetensors", {name});
    for (const auto& [name, file] : indexes) {
      write_index(dir_ / ("d/" + name + ".safetensors.index.json"), {{file, file + ".safetensors"}},
                  1);
    }
    if (expected.find(' ') != std::string::npos) {
      expect_refused({at("d")}, ErrorCode::kUnreadable, 3, expected);
      continue;
    }
    EXPECT_EQ(names_of(Checkpoint(Strings{at("d")})), Strings{expected});
    EXPECT_EQ(names_of(Checkpoint(Strings{at("d/")})), Strings{expected});
  }
}

// Tests of unreadable sources.

TEST_F(CheckpointTest, RejectsNonRegularFilesWithoutHanging) {
  for (const char* const name : {"d/m.safetensors", "e/model.safetensors.index.json"}) {
    fs::create_directory((dir_ / name).parent_path());
    ASSERT_EQ(::mkfifo(at(name).c_str(), 0600), 0);
  }
  fs::create_symlink("link.safetensors", dir_ / "link.safetensors");
  const struct {
    std::string source;
    ErrorCode code;
    const char* message;
  } kRows[] = {
      {at("absent.safetensors"), ErrorCode::kAbsent, "absent.safetensors: No such file"},
      {at("absent.safetensors.index.json"), ErrorCode::kAbsent, "No such file"},
      {"", ErrorCode::kAbsent, "No such file"},
      {at("d/m.safetensors"), ErrorCode::kUnreadable, "not a regular file"},
      {at("d"), ErrorCode::kUnreadable, "not a regular file"},
      {at("e/model.safetensors.index.json"), ErrorCode::kUnreadable, "not a regular file"},
      {"/dev/zero", ErrorCode::kUnreadable, "not a regular file"},
      {at("link.safetensors"), ErrorCode::kUnreadable, "link.safetensors: "},
  };
  for (const auto& [source, code, message] : kRows) {
    SCOPED_TRACE(source);
    expect_refused({source}, code, 3, message);
  }
}

TEST_F(CheckpointTest, RejectsTooLargeIndexWithoutReadingIt) {
  write_index(dir_ / "model.safetensors.index.json", {});
  fs::resize_file(dir_ / "model.safetensors.index.json", 100'000'001);  // a hole

  expect_refused({dir_.path()}, ErrorCode::kUnreadable, 3,
                 "model.safetensors.index.json: larger than the limit of 100000000 bytes");
}

TEST_F(CheckpointTest, InvalidFileErrorNamesPlaceSubjectAndRule) {
  write_file(dir_ / "m.safetensors",
             safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "xyz"));

  expect_refused({at("m.safetensors")}, ErrorCode::kInvalidOffset, 1,
                 at("m.safetensors") + ": tensor \"a\": data_offsets [1,3] leave a gap");
}

TEST_F(CheckpointTest, FileWithoutPermissionIsUnreadable) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write("m.safetensors", {"a"});
  fs::permissions(dir_ / "m.safetensors", fs::perms::none);

  expect_refused({at("m.safetensors")}, ErrorCode::kUnreadable, 3, "Permission denied");
}

// Tests of shards.

TEST_F(CheckpointTest, LoadsTensorsInIndex) {
  write("2.safetensors", {"c", "a"});
  write("1.safetensors", {"b"});
  write_index(dir_ / "m.safetensors.index.json",
              {{"a", "2.safetensors"}, {"b", "1.safetensors"}, {"c", "2.safetensors"}}, 3);

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")});

  EXPECT_EQ(names_of(checkpoint), (Strings{"b", "c", "a"}));
  EXPECT_EQ(labels_of(checkpoint), (Strings{"1.safetensors", "2.safetensors"}));
  EXPECT_TRUE(checkpoint.warnings().empty());
}

TEST_F(CheckpointTest, IgnoresShardsMissingFromIndex) {
  write("1.safetensors", {"a"});
  write("2.safetensors", {"b"});
  write_index(dir_ / "model.safetensors.index.json", {{"a", "1.safetensors"}}, 1);

  EXPECT_EQ(names_of(Checkpoint(Strings{dir_.path()})), Strings{"a"});
}

TEST_F(CheckpointTest, FindsShardsInIndexDirectoryAndBelow) {
  write("c/sub/1.safetensors", {"a"});
  write("c/2.safetensors", {"b"});
  write_index(dir_ / "c/m.safetensors.index.json",
              {{"a", "sub/1.safetensors"}, {"b", "./2.safetensors"}}, 2);

  const Checkpoint checkpoint(Strings{at("c/m.safetensors.index.json")});

  EXPECT_EQ(checkpoint.tensor_count(), 2U);
}

TEST_F(CheckpointTest, RejectsShardOutsideIndexDirectory) {
  write("out.safetensors", {"a"});
  fs::create_directory(dir_ / "in");
  write_index(dir_ / "in/m.safetensors.index.json", {{"a", "../out.safetensors"}});
  write_index(dir_ / "in/n.safetensors.index.json", {{"a", at("out.safetensors")}});

  expect_refused({at("in/m.safetensors.index.json")}, ErrorCode::kInvalidIndex, 1, "leaves");
  expect_refused({at("in/n.safetensors.index.json")}, ErrorCode::kInvalidIndex, 1, "absolute");
}

TEST_F(CheckpointTest, FollowsLinksInHuggingFaceCache) {
  write("hub/blobs/0a1b", {"a"});
  write("hub/blobs/2c3d", {"b"});
  write_index(dir_ / "hub/blobs/4e5f", {{"a", "1.safetensors"}, {"b", "2.safetensors"}}, 2);
  fs::create_directories(dir_ / "hub/snapshots/main");
  fs::create_symlink("../../blobs/0a1b", dir_ / "hub/snapshots/main/1.safetensors");
  fs::create_symlink("../../blobs/2c3d", dir_ / "hub/snapshots/main/2.safetensors");
  fs::create_symlink("../../blobs/4e5f", dir_ / "hub/snapshots/main/model.safetensors.index.json");
  fs::create_symlink("snapshots/main", dir_ / "hub/current");

  const Checkpoint checkpoint(Strings{at("hub/current")});

  EXPECT_EQ(names_of(checkpoint), (Strings{"a", "b"}));
  EXPECT_EQ(labels_of(checkpoint), (Strings{"1.safetensors", "2.safetensors"}));
  EXPECT_EQ(checkpoint.tensor(0).locator->source->path(),
            fs::canonical(dir_ / "hub/blobs/0a1b").string());
}

TEST_F(CheckpointTest, NamesMissingShard) {
  write("1.safetensors", {"a"});
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}, {"b", "2.safetensors"}});

  expect_refused({at("m.safetensors.index.json")}, ErrorCode::kMissingShard, 3,
                 "\"2.safetensors\"");
}

TEST_F(CheckpointTest, CountsMissingShardsAndTensorsAndAddsHint) {
  write("1.safetensors", {"a"});
  write_index(dir_ / "m.safetensors.index.json",
              {{"a", "2.safetensors"}, {"b", "3.safetensors"}, {"c", "4.safetensors"}});
  write_index(dir_ / "n.safetensors.index.json",
              {{"b", "1.safetensors"}, {"c", "1.safetensors"}, {"a", "1.safetensors"}});

  expect_refused({at("m.safetensors.index.json")}, ErrorCode::kMissingShard, 3,
                 "shard \"2.safetensors\": missing, and 2 more shards: download them; go on",
                 {.missing_hint = "go on"});
  expect_refused({at("n.safetensors.index.json")}, ErrorCode::kMissingTensor, 1,
                 "tensor \"b\": shard \"1.safetensors\" does not hold it, nor 1 more tensor: "
                 "download the index and the shard again (MissingTensor)");
}

TEST_F(CheckpointTest, ReportsSingleFileOnlyIfItShowsWholeFile) {
  write("1.safetensors", {"a", "b"});
  write("2.safetensors", {"c"});
  write_index(dir_ / "all.safetensors.index.json",
              {{"a", "1.safetensors"}, {"b", "1.safetensors"}});
  write_index(dir_ / "part.safetensors.index.json", {{"a", "1.safetensors"}});

  for (const char* whole : {"1.safetensors", "all.safetensors.index.json"}) {
    const Checkpoint checkpoint(Strings{at(whole)});
    ASSERT_NE(checkpoint.single_file(), nullptr) << whole;
    EXPECT_EQ(checkpoint.single_file()->path(), fs::canonical(dir_ / "1.safetensors").string());
  }
  EXPECT_EQ(Checkpoint(Strings{at("part.safetensors.index.json")}).single_file(), nullptr);
  EXPECT_EQ(Checkpoint(Strings{at("1.safetensors"), at("2.safetensors")}).single_file(), nullptr);
}

TEST_F(CheckpointTest, NamesTensorMissingFromShard) {
  write("1.safetensors", {"a"});
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}, {"b", "1.safetensors"}});

  expect_refused({at("m.safetensors.index.json")}, ErrorCode::kMissingTensor, 1, "tensor \"b\"");
}

TEST_F(CheckpointTest, NamesTensorInWrongShard) {
  write("1.safetensors", {"a"});
  write("2.safetensors", {"b"});
  write_index(dir_ / "m.safetensors.index.json", {{"a", "2.safetensors"}, {"b", "2.safetensors"}});

  expect_refused({at("m.safetensors.index.json")}, ErrorCode::kMissingTensor, 1, "tensor \"a\"");
}

TEST_F(CheckpointTest, LoadsRestIfMissingIsAllowed) {
  write("1.safetensors", {"a"});
  fs::create_symlink("nowhere", dir_ / "3.safetensors");
  write_index(dir_ / "m.safetensors.index.json",
              {{"a", "1.safetensors"},
               {"b", "1.safetensors"},
               {"c", "2.safetensors"},
               {"d", "3.safetensors"}},
              4);

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")}, {.allow_missing = true});

  Strings missing;
  for (const MissingTensor& tensor : checkpoint.missing())
    missing.push_back(tensor.name.value() + "@" + tensor.source);
  EXPECT_EQ(names_of(checkpoint), Strings{"a"});
  EXPECT_EQ(missing, (Strings{"b@1.safetensors", "c@2.safetensors", "d@3.safetensors"}));
  EXPECT_TRUE(checkpoint.warnings().empty()) << "the total cannot be compared";
}

TEST_F(CheckpointTest, RejectsBrokenShardEvenIfMissingIsAllowed) {
  write_file(dir_ / "1.safetensors", "broken");
  fs::create_directory(dir_ / "d");
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}});
  write_index(dir_ / "n.safetensors.index.json", {{"a", "d"}});

  expect_refused({at("m.safetensors.index.json")}, ErrorCode::kHeaderTooSmall, 1, "1.safetensors",
                 {.allow_missing = true});
  expect_refused({at("n.safetensors.index.json")}, ErrorCode::kUnreadable, 3, "not a regular file",
                 {.allow_missing = true});
}

TEST_F(CheckpointTest, RejectsFifoAsShard) {
  ASSERT_EQ(::mkfifo(at("1.safetensors").c_str(), 0600), 0);
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}});

  expect_refused({at("m.safetensors.index.json")}, ErrorCode::kUnreadable, 3, "not a regular file");
}

TEST_F(CheckpointTest, LoadsShardWithSeveralNamesOnce) {
  write("1.safetensors", {"a", "b", "c", "d"});
  std::filesystem::create_symlink(at("1.safetensors"), at("2.safetensors"));
  write_index(dir_ / "m.safetensors.index.json",
              {{"a", "1.safetensors"},
               {"b", "./1.safetensors"},
               {"c", "././1.safetensors"},
               {"d", "2.safetensors"}},
              4);

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")});

  EXPECT_EQ(checkpoint.parts().size(), 1U);
  EXPECT_EQ(checkpoint.tensor_count(), 4U);
  EXPECT_TRUE(checkpoint.warnings().empty());
}

TEST_F(CheckpointTest, WarnsAboutWrongTotalSize) {
  write("1.safetensors", {"a", "b"});
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}, {"b", "1.safetensors"}},
              3);

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")});

  ASSERT_EQ(checkpoint.warnings().size(), 1U);
  EXPECT_EQ(checkpoint.warnings()[0], at("m.safetensors.index.json") +
                                          ": total_size: 3, but the tensors have 2 bytes (the sum "
                                          "in the index is wrong; no tensor is lost)");
}

TEST_F(CheckpointTest, PassesWarningsToCallback) {
  write("1.safetensors", {"a"});
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}}, 2);
  Strings lines;

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")},
                              {.warn = [&](const std::string& line) { lines.push_back(line); }});

  EXPECT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines, checkpoint.warnings());
}

TEST_F(CheckpointTest, WarnsAboutAndOmitsTensorsNotInIndex) {
  write("1.safetensors", {"z", "m", "a", "k", "b"});
  write_index(dir_ / "m.safetensors.index.json", {{"a", "1.safetensors"}, {"z", "1.safetensors"}},
              2);

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")});

  EXPECT_EQ(names_of(checkpoint), (Strings{"z", "a"}));
  EXPECT_EQ(checkpoint.find("a"), 1U);
  EXPECT_EQ(checkpoint.find("m"), std::nullopt);
  ASSERT_EQ(checkpoint.warnings().size(), 1U);
  EXPECT_NE(checkpoint.warnings()[0].find("holds 3 tensors that the index does not name"),
            std::string::npos);
}

TEST_F(CheckpointTest, KeepsIndexedTensorsInAnyOrder) {
  // The names are not in bytewise order, and each is randomly omitted or kept.
  RandomBytes random(5);
  for (int round = 0; round < 50; ++round) {
    Strings names;
    for (int i = 0; i < 12; ++i) names.push_back("t" + std::to_string(i * 7 % 12));
    std::map<std::string, std::string> map;
    Strings kept;
    for (const std::string& name : names) {
      if (random.next() % 2 == 0) continue;
      map[name] = "1.safetensors";
      kept.push_back(name);
    }
    write("1.safetensors", names);
    write_index(dir_ / "m.safetensors.index.json", map, kept.size());

    const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")});

    ASSERT_EQ(names_of(checkpoint), kept);
    for (std::uint32_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(checkpoint.find(kept[i]), i);
      EXPECT_EQ(checkpoint.tree().find(kept[i]), i);
    }
  }
}

// Tests of several sources.

TEST_F(CheckpointTest, SeveralSourcesShareOneNamespace) {
  write("1.safetensors", {"a"});
  write("d/s.safetensors", {"b/c"});
  write_index(dir_ / "d/model.safetensors.index.json", {{"b/c", "s.safetensors"}}, 1);

  const Checkpoint checkpoint(Strings{at("1.safetensors"), at("d")});

  EXPECT_EQ(names_of(checkpoint), (Strings{"a", "b/c"}));
  EXPECT_EQ(checkpoint.tree().find("b/c"), 1U);
}

TEST_F(CheckpointTest, RejectsNameInTwoSources) {
  write("1.safetensors", {"a", "b"});
  write("2.safetensors", {"c", "a"});

  expect_refused({at("1.safetensors"), at("2.safetensors")}, ErrorCode::kUsage, 2,
                 "2.safetensors: tensor \"a\": ");
}

TEST_F(CheckpointTest, RejectsSameSourceTwice) {
  write("1.safetensors", {"a"});

  expect_refused({at("1.safetensors"), at("1.safetensors")}, ErrorCode::kUsage, 2, "tensor \"a\"");
}

TEST_F(CheckpointTest, UsesIndexedShardIfTwoShardsHaveName) {
  write("1.safetensors", {"a", "b"});
  write("2.safetensors", {"b", "c"});
  write_index(dir_ / "m.safetensors.index.json",
              {{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "2.safetensors"}}, 3);

  const Checkpoint checkpoint(Strings{at("m.safetensors.index.json")});

  EXPECT_EQ(names_of(checkpoint), (Strings{"a", "b", "c"}));
}

TEST_F(CheckpointTest, NumbersEqualLabels) {
  write("1/model.safetensors", {"a"});
  write("2/model.safetensors", {"b"});
  write("3/model.safetensors", {"c"});
  write("model.safetensors~2", {"d"});

  const Checkpoint checkpoint(
      Strings{at("1"), at("model.safetensors~2"), at("2"), at("3/model.safetensors")});

  EXPECT_EQ(labels_of(checkpoint), (Strings{"model.safetensors", "model.safetensors~2",
                                            "model.safetensors~3", "model.safetensors~4"}));
}

TEST_F(CheckpointTest, EscapesSlashIfPrefixIsTensorInOtherSource) {
  write("1.safetensors", {"a"});
  write("2.safetensors", {"a/b"});

  const Checkpoint checkpoint(Strings{at("1.safetensors"), at("2.safetensors")});

  EXPECT_EQ(checkpoint.tensor(1).path, "a%2Fb");
}

TEST_F(CheckpointTest, MergesMetadataWithoutConflictingKeys) {
  write("1.safetensors", {"a"}, Metadata{{"format", "pt"}, {"step", "1"}, {"x", ""}});
  write("2.safetensors", {"b"}, Metadata{{"format", "pt"}, {"step", "2"}, {"b", "c"}});
  write("3.safetensors", {"c"}, Metadata{{"step", "1"}});

  const Checkpoint checkpoint(
      Strings{at("1.safetensors"), at("2.safetensors"), at("3.safetensors")});

  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(Pairs(checkpoint.metadata().begin(), checkpoint.metadata().end()),
            (Pairs{{"b", "c"}, {"format", "pt"}, {"x", ""}}));
  EXPECT_EQ(checkpoint.metadata_conflicts(), Strings{"step"});
}

TEST_F(CheckpointTest, EscapesPlaceInMessage) {
  expect_refused({at("\x1b[2J.safetensors")}, ErrorCode::kAbsent, 3, "\\x1b[2J.safetensors: ");
}

}  // namespace
}  // namespace stfs::test
