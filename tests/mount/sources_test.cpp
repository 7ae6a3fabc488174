// Every kind of SOURCE, and the exit status of each SOURCE that stfs rejects.
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

TEST_F(Sources, AcceptsFile) {
  const Mounted mounted({test_data("single/voices.safetensors")});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"mask", "tokens"}));
}

TEST_F(Sources, DirectoryOpensIndexElseModelSafetensorsElseOnlyFile) {
  write_safetensors(dir_ / "adapter.safetensors", {random_tensor("adapter", "U8", {1})});
  write_file(dir_ / "config.json", "{}");
  EXPECT_EQ(names_in(Mounted({dir_.path()}).path()), NameList{"adapter"});
  write_safetensors(dir_ / "model.safetensors", {random_tensor("model", "U8", {1})});
  EXPECT_EQ(names_in(Mounted({dir_.path()}).path()), NameList{"model"});
  const std::filesystem::path model = write_sharded();
  write_safetensors(model / "model.safetensors", {random_tensor("not this", "U8", {1})});
  EXPECT_EQ(names_in(Mounted({model}).path()), (NameList{"a", "b"}));
}

TEST_F(Sources, RejectsEmptyDirectory) {
  std::filesystem::create_directory(dir_ / "empty");
  expect_refused(mount({dir_ / "empty"}), 3, {"empty", ".safetensors", "it is empty"});
}

TEST_F(Sources, RejectsDirectoryWithoutCheckpoint) {
  std::filesystem::create_directory(dir_ / "other");
  write_file(dir_ / "other/model.onnx", "x");
  write_file(dir_ / "other/model.h5", "x");
  expect_refused(mount({dir_ / "other"}), 3, {"it has \"model.h5\" and 1 more; stfs reads"});
  write_file(dir_ / "other/optimizer.pt", "x");
  expect_refused(mount({dir_ / "other"}), 3,
                 {"other", "it has \"optimizer.pt\": name the file that you mean"});
}

TEST_F(Sources, SuggestsWhereCheckpointIs) {
  namespace fs = std::filesystem;
  fs::create_directories(dir_ / "pipeline/unet");
  write_file(dir_ / "pipeline/unet/diffusion_pytorch_model.safetensors", "");
  expect_refused(mount({dir_ / "pipeline"}), 3, {"it has a checkpoint in \"unet\""});
  // A directory with this many entries is not searched, because it is not a model and the search
  // would take long.
  for (int i = 0; i < 1000; ++i) write_file(dir_ / ("pipeline/" + std::to_string(i)), "");
  expect_refused(mount({dir_ / "pipeline"}), 3, {"no index in this directory\n"});
  fs::create_directories(dir_ / "models--a--b/snapshots/0a1b");
  fs::create_directory(dir_ / "models--a--b/blobs");
  expect_refused(mount({dir_ / "models--a--b"}), 3, {"the cache of a Hub", "snapshots/0a1b"});
  fs::create_directories(dir_ / "local/.cache/huggingface/download");
  write_file(dir_ / "local/.cache/huggingface/download/x.0a1b.incomplete", "");
  expect_refused(mount({dir_ / "local"}), 3, {"unfinished"});
  const auto refused = [&](const std::string& name, const std::vector<std::string>& files,
                           const std::string& words) {
    for (const std::string& file : files) {
      fs::create_directories((dir_ / name / file).parent_path());
      write_file(dir_ / name / file, "x");
    }
    expect_refused(mount({dir_ / name}), 3, {words});
  };
  refused("step-1", {"__0_0.distcp", "common.pt"},
          "has \"__0_0.distcp\" and no .metadata: an unfinished distributed checkpoint");
  refused("step-1", {".metadata"},
          "distributed checkpoint of PyTorch: convert its directory with python -m "
          "torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE");
  refused("fsdp", {"pytorch_model_fsdp_0/.metadata"},
          "it has a checkpoint in \"pytorch_model_fsdp_0\"");
  refused("ollama", {"blobs/sha256-" + std::string(64, 'a'), "manifests/x"},
          "ollama show --modelfile MODEL");
  refused("ollama/blobs", {}, "ollama show --modelfile MODEL");
  refused("unpacked", {"data.pkl", "version", "data/0"}, "zip -0 -r FILE.pt");
  refused(
      "pieces", {"m.gguf.part1of2", "m.gguf.part2of2"},
      "has \"m.gguf.part1of2\" and 1 more, pieces of a file: join them in their order with cat");
  fs::create_directory(dir_ / "shards");
  write_file(dir_ / "shards/model-00001-of-00002.safetensors", "");
  write_file(dir_ / "shards/model-00002-of-00002.safetensors", "");
  expect_refused(mount({dir_ / "shards"}), 3, {"index", "is missing"});
}

TEST_F(Sources, RejectsUnknownSchemeAndHubModelWithoutScheme) {
  expect_refused(mount({"ftp://example.org/model.safetensors"}), 2, {"https, s3 and hf"});
  expect_refused(mount({"no-such-org/Some-Model-8B"}), 3, {"name hf://no-such-org/Some-Model-8B"});
  expect_refused(mount({"no-such-org/model.safetensors"}), 3, {"No such file or directory\n"});
}

TEST_F(Sources, RejectsDirectoryWithSeveralFilesAndListsThem) {
  std::filesystem::create_directory(dir_ / "two");
  write_safetensors(dir_ / "two/first.safetensors", {random_tensor("a", "U8", {1})});
  write_safetensors(dir_ / "two/second.safetensors", {random_tensor("b", "U8", {1})});
  expect_refused(mount({dir_ / "two"}), 3, {"first.safetensors", "second.safetensors"});
}

TEST_F(Sources, WeightMapDecidesAndOtherFilesAreIgnored) {
  const std::filesystem::path model = write_sharded();
  write_safetensors(model / "three.safetensors", {random_tensor("c", "U8", {1})});
  write_safetensors(model / "two.safetensors",
                    {random_tensor("b", "U8", {20}, 2), random_tensor("unnamed", "U8", {1})});
  const Mounted mounted({model});
  EXPECT_EQ(names_in(mounted.path()), (NameList{"a", "b"}));
}

TEST_F(Sources, WrongTotalSizeAndUnnamedTensorAreWarnings) {
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

TEST_F(Sources, NameInTwoSourcesIsExit2) {
  expect_refused(mount({test_data("single/dtypes.safetensors"), test_data("sharded")}), 2, {"_3"});
}

TEST_F(Sources, TwoFilesWithOneNameGetTwoHeaders) {
  std::filesystem::create_directory(dir_ / "x");
  std::filesystem::create_directory(dir_ / "y");
  write_safetensors(dir_ / "x/m.safetensors", {random_tensor("a", "U8", {1})});
  write_safetensors(dir_ / "y/m.safetensors", {random_tensor("b", "U8", {1})});

  const Mounted mounted({dir_ / "x/m.safetensors", dir_ / "y/m.safetensors"});

  EXPECT_EQ(names_in(mounted / ".stfs/header").size(), 2u);
}

TEST_F(Sources, AcceptsLayoutOfHuggingFaceCache) {
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

TEST_F(Sources, FindsShardsInSubdirectory) {
  std::filesystem::create_directories(dir_ / "m/parts");
  write_safetensors(dir_ / "m/parts/one.safetensors", {random_tensor("a", "U8", {10})});
  write_index(dir_ / "m/model.safetensors.index.json", {{"a", "parts/one.safetensors"}});
  const Mounted mounted({dir_ / "m"});
  EXPECT_EQ(names_in(mounted.path()), NameList{"a"});
}

TEST_F(Sources, RejectsIndexWithShardOutsideItsDirectory) {
  write_safetensors(dir_ / "evil.safetensors", {random_tensor("a", "U8", {10})});
  std::filesystem::create_directory(dir_ / "m");
  for (const std::string& shard :
       {std::string("../evil.safetensors"), std::string("x/../../evil.safetensors"),
        std::string(".."), (dir_ / "evil.safetensors").string(), std::string("/etc/passwd")}) {
    write_index(dir_ / "m/model.safetensors.index.json", {{"a", shard}});
    expect_refused(mount({dir_ / "m"}), 1, {"index.json"});
  }
}

TEST_F(Sources, RejectsMalformedIndex) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": ""}})", R"({"weight_map": {"a": "x\u0000y"}})"}) {
    write_file(dir_ / "model.safetensors.index.json", text);
    expect_refused(mount({dir_ / "model.safetensors.index.json"}), 1, {"index.json"});
  }
}

TEST_F(Sources, NamesMissingShard) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  expect_refused(mount({model}), 3,
                 {"model.safetensors.index.json: shard \"two.safetensors\": missing: download it; "
                  "-o allow_missing mounts the rest\n"});
  const Outcome listed = run({STFS_INFO_BINARY, "list", model});
  EXPECT_EQ(listed.status, 3);
  EXPECT_TRUE(listed.err.ends_with("download it; --allow-missing reads the rest\n")) << listed.err;
}

TEST_F(Sources, CountsMissingShardsAndNamesUnfinishedDownload) {
  const std::filesystem::path model = write_sharded();
  write_index(model / "model.safetensors.index.json", {{"a", "one.safetensors"},
                                                       {"b", "two.safetensors"},
                                                       {"c", "three.safetensors"},
                                                       {"d", "four.safetensors"}});
  std::filesystem::rename(model / "two.safetensors", model / "four.safetensors.incomplete");

  expect_refused(mount({model}), 3,
                 {"shard \"four.safetensors\": missing (\"four.safetensors.incomplete\" is an "
                  "unfinished download), and 2 more shards: download them; -o allow_missing"});
}

TEST_F(Sources, ReportsShardThatIsGitLfsPointer) {
  const std::filesystem::path model = write_sharded();
  write_file(model / "two.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  expect_refused(mount({model}), 1, {"two.safetensors: the file is a Git LFS pointer"});
  write_file(model / "model.safetensors.index.json",
             "version https://git-lfs.github.com/spec/v1\n");
  expect_refused(mount({model}), 1,
                 {"index.json: the file is a Git LFS pointer", "(InvalidIndex)\n"});
}

TEST_F(Sources, DanglingSymlinkIsMissingShard) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  std::filesystem::create_symlink("../blobs/gone", model / "two.safetensors");
  expect_refused(
      mount({model}), 3,
      {"shard \"two.safetensors\": a symbolic link to \"../blobs/gone\", which is missing"});
  expect_refused(mount({model / "two.safetensors"}), 3,
                 {"two.safetensors: No such file or directory: a symbolic link to"});
  std::filesystem::create_directory(dir_ / "blobs");
  write_file(dir_ / "blobs/gone.incomplete", "");
  expect_refused(mount({model}), 3, {"(\"gone.incomplete\" is an unfinished download)"});
}

TEST_F(Sources, NamesTensorMissingInShard) {
  const std::filesystem::path model = write_sharded();
  write_index(model / "model.safetensors.index.json",
              {{"a", "one.safetensors"}, {"absent", "two.safetensors"}});
  expect_refused(mount({model}), 1,
                 {"absent", "two.safetensors", "-o allow_missing mounts the rest"});
}

TEST_F(Sources, AllowMissingMountsRestAndListsMissingTensors) {
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

TEST_F(Sources, AllowMissingStillRejectsBrokenShard) {
  const std::filesystem::path model = write_sharded();
  write_file(model / "two.safetensors", "short");
  expect_refused(mount({"-o", "allow_missing", model}), 1, {"two.safetensors"});
}

TEST_F(Sources, RejectsFifoWithoutHanging) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  ASSERT_EQ(::mkfifo((model / "two.safetensors").c_str(), 0644), 0);

  expect_refused(mount({model}), 3, {"two.safetensors", "not a regular file but a pipe"});
  expect_refused(mount({model / "two.safetensors"}), 3, {"two.safetensors"});
  EXPECT_EQ(run({STFS_INFO_BINARY, "check", model / "two.safetensors"}).status, 3);
  ASSERT_EQ(::mkfifo((dir_ / "model.safetensors.index.json").c_str(), 0644), 0);
  expect_refused(mount({dir_ / "model.safetensors.index.json"}), 3, {"index.json"});
}

TEST_F(Sources, RejectsDevice) { expect_refused(mount({"/dev/zero"}), 3, {"/dev/zero"}); }

TEST_F(Sources, RejectsDirectoryAsShard) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  std::filesystem::create_directory(model / "two.safetensors");
  expect_refused(mount({model}), 3, {"two.safetensors", "not a regular file but a directory"});
}

TEST_F(Sources, RejectsSymlinkLoop) {
  const std::filesystem::path model = write_sharded();
  std::filesystem::remove(model / "two.safetensors");
  std::filesystem::create_symlink("two.safetensors", model / "two.safetensors");
  expect_refused(mount({model}), 3, {"two.safetensors"});
  expect_refused(mount({model / "two.safetensors"}), 3, {"two.safetensors"});
}

TEST_F(Sources, NamesMissingSource) {
  expect_refused(mount({dir_ / "gone.safetensors"}), 3, {"gone.safetensors"});
}

TEST_F(Sources, RejectsSourceWithoutPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write_safetensors(dir_ / "m.safetensors", {random_tensor("a", "U8", {1})});
  std::filesystem::permissions(dir_ / "m.safetensors", std::filesystem::perms::none);
  expect_refused(mount({dir_ / "m.safetensors"}), 3, {"m.safetensors"});
}

TEST_F(Sources, RejectsInvalidFileWithRuleName) {
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

// Files that users mount by mistake, and the messages that they get.
TEST_F(Sources, RecognisesOtherFormatsAndSaysWhatToDo) {
  using namespace std::string_literals;
  const struct {
    std::string bytes;
    const char* rule;
    NameList words;
  } cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n",
       "HeaderTooLarge",
       {"Git LFS pointer", "git lfs pull"}},
      {"\n <!DOCTYPE html><html><body>Log in</body></html>", "HeaderTooLarge", {"HTML page"}},
      {"<HTML><body>Log in</body></html>", "HeaderTooLarge", {"HTML page"}},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>",
       "HeaderTooLarge",
       {"XML", "AccessDenied"}},
      {R"({"error":"Repository not found"})",
       "HeaderTooLarge",
       {"a server's error", "Repository not found"}},
      {R"({"weight_map": {"a": "1.safetensors"}})",
       "HeaderTooLarge",
       {"an index of shards", ".safetensors.index.json"}},
      {R"({"model_type": "llama"})", "HeaderTooLarge", {"is JSON", ".safetensors"}},
      {"PK\3\4" + std::string(26, '\1') + "archive/data.pkl",
       "Archive",
       {"no end record", "download it again"}},
      {"\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
       "HeaderTooLarge",
       {"PyTorch file from before 1.6", "torch.save"}},
      {"\x80\2}q\1X" + std::string(30, 'x'),
       "HeaderTooLarge",
       {"pickle that torch.save did not write", "pickle.load"}},
      {"\x80\4\x95\0\0\0\0\0\0\0\0}"s,
       "InvalidHeaderLength",
       {"pickle that torch.save did not write", "numpy.savez"}},
      {"lmgg" + std::string(30, 'x'), "HeaderTooLarge", {"ggml file, as whisper.cpp"}},
      {"tjgg" + std::string(30, 'x'), "HeaderTooLarge", {"ggml file from before GGUF"}},
      {"\x1c\0\0\0TFL3\0\0"s, "HeaderTooLarge", {"TensorFlow Lite"}},
      {"\6\0\0\0\x10\0TransformerSpec\0\7\0\0\0"s, "HeaderTooLarge", {"CTranslate2"}},
      {"\x82\xa6params\x81\xa5"
       "dense\x81\xa6kernel" +
           std::string(30, '\xc7'),
       "HeaderTooLarge",
       {"msgpack, as Flax"}},
      {"|TZR|\n" + std::string(30, '\1'), "HeaderTooLarge", {"tensorizer"}},
      {"7z\xbc\xaf\x27\x1c\0\4"s + std::string(30, '\1'), "HeaderTooLarge", {"7z archive"}},
      {"GGUF\3\0\0\0\1"s, "GgufTruncated", {"truncated", "download it again"}},
      {"\x93NUMPY\1\0v\0{'descr'}"s, "HeaderTooLarge", {"NumPy", "numpy.savez"}},
      {"\x1f\x8b\x08\0\0\0\0\0\2\3x"s, "InvalidHeaderLength", {"gzip -d"}},
      {"\x28\xb5\x2f\xfd" + std::string(20, 'x'), "HeaderTooLarge", {"zstd -d"}},
      {"\x89HDF\r\n\x1a\n" + std::string(20, 'x'), "HeaderTooLarge", {"HDF5"}},
      {"\x08\x08\x12\x07pytorch\x1a\x05", "HeaderTooLarge", {"ONNX"}},
      {std::string(512, 'x').replace(257, 5, "ustar"), "HeaderTooLarge", {"tar archive"}},
      {"", "HeaderTooSmall", {"the file is empty", "download"}},
      {"gone\n", "HeaderTooSmall", {"is text: gone"}},
      {"\1\2\3", "HeaderTooSmall", {"3 bytes", "truncated?", "download it again"}},
      {"\xff\xfe", "HeaderTooSmall", {"header: the file has 2 bytes", "truncated?"}},
      {std::string(10'000, '\0'), "InvalidHeaderDeserialization", {"begins with zeros"}},
      {"Entry not found\x1b[31m", "HeaderTooLarge", {"not a safetensors file"}},
      {"Eintrag nicht gefunden: größer", "HeaderTooLarge", {"is text: Eintrag"}},
      {std::string(4093, 'x') + "🦙", "HeaderTooLarge", {"is text: xxx"}},
      {std::string(50, '\xc8'), "HeaderTooLarge", {": not a safetensors file"}},
  };
  const std::filesystem::path source = dir_ / "model.safetensors";
  for (const auto& [bytes, rule, words] : cases) {
    write_file(source, bytes);

    const Outcome mounted = mount({source});
    const Outcome checked = run({STFS_INFO_BINARY, "check", source});

    expect_refused(mounted, 1, words);
    expect_refused(mounted, 1, {std::string("(") + rule + ")\n"});
    EXPECT_EQ(checked.status, 1) << checked.err;
    EXPECT_NE(checked.out.find(std::string("\terror\t") + rule), std::string::npos) << checked.out;
    EXPECT_NE(checked.out.find(words.front()), std::string::npos) << checked.out;
  }
}

// A header with the first length begins like a pickle, and a header with the second length like
// gzip.
TEST_F(Sources, ReadsValidFileThatLooksLikeOtherFormat) {
  for (const std::size_t length : {0x0280U, 0x088B1FU}) {
    std::string json = header_json({random_tensor("w", "U8", {4})});
    json.resize(length, ' ');
    write_file(dir_ / "m.safetensors.part", safetensors_bytes(json, "abcd"));
    EXPECT_EQ(names_in(Mounted({dir_ / "m.safetensors.part"}).path()), NameList{"w"});

    json.replace(json.find("U8"), 2, "XX");
    write_file(dir_ / "m.safetensors", safetensors_bytes(json, "abcd"));
    const Outcome broken = mount({dir_ / "m.safetensors"});
    expect_refused(broken, 1, {"m.safetensors: tensor \"w\": unknown dtype"});
  }
}

TEST_F(Sources, TruncatedFileReportsSizeAndNeededSize) {
  const std::filesystem::path source = dir_ / "m.safetensors";
  write_safetensors(source, {random_tensor("w", "U8", {5000})});
  const std::string whole = read_file(source);
  const std::string size = std::to_string(whole.size());

  write_file(source, whole.substr(0, 3000));
  expect_refused(mount({source}), 1,
                 {"m.safetensors: the file has 3000 bytes and needs " + size + ": truncated",
                  "download it again (MetadataIncompleteBuffer)\n"});
  for (const char* piece :
       {"m.gguf.part1of2", "m.gguf.part10of12", "m.gguf-split-a", "m.safetensors.partab"}) {
    std::filesystem::copy_file(source, dir_ / piece);
    expect_refused(
        mount({dir_ / piece}), 1,
        {"has the name of one piece of a split file (join all pieces in their order with cat"});
  }
  std::filesystem::rename(source, dir_ / "m.incomplete");
  expect_refused(mount({dir_ / "m.incomplete"}), 1, {"an unfinished download", "finish"});
  write_file(source, whole + "x");
  expect_refused(mount({source}), 1, {"the file has 1 byte after the last tensor"});
  write_file(source, whole.substr(0, 20));
  expect_refused(mount({source}), 1,
                 {"the file has 20 bytes and needs at least " +
                      std::to_string(whole.size() - 5000) + ": truncated?",
                  "(InvalidHeaderLength)\n"});
}

TEST_F(Sources, EscapesControlCharactersInMessages) {
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

TEST_F(Sources, SourceInsideMountpointIsRejectedOrSafe) {
  const Tensor tensor = random_tensor("w", "U8", {100'000});
  write_safetensors(mountpoint() / "m.safetensors", {tensor});

  const Outcome result = mount({mountpoint() / "m.safetensors"});

  if (result.status != 0) {
    expect_refused(result, result.status);
  } else {
    EXPECT_EQ(read_file(mountpoint() / "w"), tensor.bytes);
  }
}

}  // namespace
}  // namespace stfs::test
