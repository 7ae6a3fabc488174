// Tests of `.stfs/model/`, which has the files that loaders read, and of config.json without its
// quantisation. tests/dequantize tests complete checkpoints.
#include "core/checkpoint/model_files.h"

#include "core/checkpoint/checkpoint.h"
#include "fs/mount/filesystem.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/unit/served_checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> without_quantisation(std::string_view config, DType type) {
  return changed_config(config, {.type = type, .is_dequantized = true});
}

TEST(ModelFiles, IncludeOnlyFilesReadByLoaders) {
  for (const char* name : {"config.json",
                           "generation_config.json",
                           "tokenizer.json",
                           "tokenizer.model",
                           "tokenizer_config.json",
                           "vocab.txt",
                           "merges.txt",
                           "chat_template.jinja",
                           "special_tokens_map.json",
                           "added_tokens.json",
                           "preprocessor_config.json",
                           "video_preprocessor_config.json",
                           "processor_config.json",
                           "qwen.tiktoken",
                           "tekken.json",
                           "modeling_x.py",
                           "README.md",
                           "LICENSE",
                           "hf_quant_config.json",
                           "quant_config.json"}) {
    EXPECT_TRUE(is_model_file(name)) << name;
  }
  for (const char* name :
       {".env", ".secret.py", "id_rsa", "notes.txt", "model.safetensors", "model.gguf",
        "model.safetensors.index.json", "tokenizer.safetensors", "vocab.bin", "params.json",
        "optimizer.pt", "credentials.json", "config.json~", "netrc", ""}) {
    EXPECT_FALSE(is_model_file(name)) << name;
  }
}

TEST(ModelFiles, RemoveOnlyQuantisationFromConfig) {
  const std::string before = R"({
  "b": [1, {"quantization": 1}],
  "quantization_config": {"x": [1, "}"]},
  "rms_norm_eps": 1e-06,
  "text_config": {"dtype": "float8", "expert_dtype": "fp4", "a" : 1},
  "vision_config": {"dtype": "float32", "quantization_config": null},
  "torch_dtype": "bfloat16", "expert_dtype": "fp4",
  "\u0063ompression_config": {}
}
)";
  EXPECT_EQ(without_quantisation(before, DType::kF16), R"({
  "b": [1, {"quantization": 1}],
  "rms_norm_eps": 1e-06,
  "text_config": {"dtype": "float16", "a" : 1},
  "vision_config": {"dtype": "float32"},
  "torch_dtype": "float16"
}
)");
}

TEST(ModelFiles, ChangeOnlyGivenConfigValues) {
  const ConfigChange change{.type = DType::kF64, .vocabulary = 9, .ties_embeddings = false};
  EXPECT_EQ(
      changed_config(R"({"vocab_size":8, "a":{"vocab_size":8},"quantization_config":1})", change),
      R"({"vocab_size":9, "a":{"vocab_size":8},"quantization_config":1,"tie_word_embeddings": false,"torch_dtype": "float64"})");
  EXPECT_EQ(
      changed_config(R"({"text_config":{"tie_word_embeddings":true}, "dtype":"auto"})", change),
      R"({"text_config":{"tie_word_embeddings":false,"vocab_size": 9}, "dtype":"float64","tie_word_embeddings": false})");
  EXPECT_EQ(changed_config(R"({"text_config":{},"vocab_size":1})", {.vocabulary = 9}),
            R"({"text_config":{},"vocab_size":9})");
  EXPECT_EQ(changed_config("{ }", {.ties_embeddings = true}), R"({"tie_word_embeddings": true })");
  EXPECT_EQ(changed_config(R"({"a" : 1})", {}), R"({"a" : 1})");
}

TEST(ModelFiles, AddTypeToConfigWithoutType) {
  EXPECT_EQ(without_quantisation(R"({"quantization":{},"a":1})", DType::kBF16),
            R"({"a":1,"torch_dtype": "bfloat16"})");
  EXPECT_EQ(without_quantisation("{\n  \"a\": 1\n}", DType::kF32),
            "{\n  \"a\": 1,\n  \"torch_dtype\": \"float32\"\n}");
  EXPECT_EQ(without_quantisation(R"({"quantization":{}})", DType::kF32),
            R"({"torch_dtype": "float32"})");
  EXPECT_EQ(without_quantisation(R"( {"dtype":null} )", DType::kF32), R"( {"dtype":"float32"} )");
  // The config may have a type for each part of the model.
  EXPECT_EQ(without_quantisation(R"({"dtype":{"text_config":"float8"}})", DType::kF32),
            R"({"dtype":"float32"})");
  EXPECT_EQ(without_quantisation("\xEF\xBB\xBF{\"a\":1}", DType::kF32),
            "\xEF\xBB\xBF{\"a\":1,\"torch_dtype\": \"float32\"}");
}

// Python writes and reads these values in JSON.
TEST(ModelFiles, KeepPythonInfinitiesInConfig) {
  EXPECT_EQ(
      without_quantisation(
          R"({"a":[0.0, Infinity], "b": -Infinity,"c":NaN,"quantization":{"d":NaN}})", DType::kF32),
      R"({"a":[0.0, Infinity], "b": -Infinity,"c":NaN,"torch_dtype": "float32"})");
  EXPECT_EQ(without_quantisation(R"({"NaN":"Infinity","a":"\"NaN","dtype":NaN})", DType::kF32),
            R"({"NaN":"Infinity","a":"\"NaN","dtype":"float32"})");
}

TEST(ModelFiles, RejectNonObjectConfig) {
  for (const char* text : {"", "[]", "{", "nul", "{\"a\":1}}", "\"x\"", "{\"\xff\":1}"}) {
    EXPECT_EQ(without_quantisation(text, DType::kF32), std::nullopt) << text;
  }
  // Nested objects use no stack.
  std::string deep = "1";
  for (int i = 0; i < 20'000; ++i) deep = "{\"a\":" + deep + "}";
  EXPECT_TRUE(without_quantisation(deep, DType::kF32));
}

class ModelDirectory : public ::testing::Test {
 protected:
  ModelDirectory() {
    write_safetensors(dir_ / "model.safetensors", {{"w", "F8_E4M3", {4}, "\x38\x38\x38\x38"}});
    write_file(dir_ / "config.json", R"({"a":1,"torch_dtype":"float8"})");
    write_file(dir_ / "tokenizer.json", "{}");
    write_file(dir_ / ".env", "TOKEN=secret");
  }

  void load(Layers layers = {}, std::vector<std::string> paths = {}, bool others_may_read = false) {
    if (paths.empty()) paths.push_back(dir_.path().string());
    filesystem_.reset();
    checkpoint_ = std::make_unique<const Checkpoint>(
        paths, LoadOptions{
                   .layers = layers, .with_model_files = true, .others_may_read = others_may_read});
    filesystem_ =
        std::make_unique<FileSystem>(*checkpoint_, FileSystemOptions{},
                                     [this](const std::string& line) { log_.push_back(line); });
  }
  std::uint64_t at(const std::vector<std::string>& path) const {
    stfs::Attributes found{};
    found.inode = kRoot;
    for (const std::string& name : path) {
      if (filesystem_->lookup(found.inode, name, found) != 0) return 0;
    }
    return found.inode;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    filesystem_->list(at({".stfs", "model"}), 2, [&](const FileSystem::Entry& entry) {
      names.emplace_back(entry.name);
      return true;
    });
    return names;
  }
  int read(const std::string& name, std::string& text) const {
    int result = -1;
    filesystem_->read(
        {at({".stfs", "model", name}), 0, kMost}, [](FileSystem::Ticket) {},
        [&](int error, const Reply& reply) {
          text = bytes_of(reply);
          result = error;
        });
    return result;
  }

  TempDir dir_;
  std::vector<std::string> log_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<FileSystem> filesystem_;
};

using Listed = std::vector<std::string>;

TEST_F(ModelDirectory, HasMergedFileAndFilesReadByLoaders) {
  load();
  EXPECT_EQ(names(), (Listed{"config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(at({".stfs", "model", "model.safetensors"}), at({".stfs", "merged.safetensors"}));
  EXPECT_EQ(at({".stfs", "model", ".env"}), 0U);
  std::string text;
  EXPECT_EQ(read("config.json", text), 0);
  EXPECT_EQ(text, R"({"a":1,"torch_dtype":"float8"})");

  load({{"dequantize", "bf16"}});
  EXPECT_EQ(read("config.json", text), 0);
  EXPECT_EQ(text, R"({"a":1,"torch_dtype":"bfloat16"})");
  EXPECT_EQ(filesystem_->attributes(at({".stfs", "model", "config.json"}))->size, text.size());
}

TEST_F(ModelDirectory, ExistsForFileIndexAndDirectory) {
  write_index(dir_ / "model.safetensors.index.json", {{"w", "model.safetensors"}}, 4);
  for (const fs::path& path :
       {dir_.path(), dir_ / "model.safetensors", dir_ / "model.safetensors.index.json"}) {
    load({}, {path.string()});
    EXPECT_NE(at({".stfs", "model", "config.json"}), 0U) << path;
  }
}

TEST_F(ModelDirectory, ExistsForFileInWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(dir_.path());
  load({}, {"model.safetensors"});
  fs::current_path(before);
  EXPECT_NE(at({".stfs", "model", "config.json"}), 0U);
}

TEST_F(ModelDirectory, NeedsConfigAndSingleSource) {
  write_safetensors(dir_ / "other.safetensors", {{"v", "F32", {1}, "abcd"}});
  load({}, {(dir_ / "model.safetensors").string(), (dir_ / "other.safetensors").string()});
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  fs::remove(dir_ / "config.json");
  load({}, {(dir_ / "model.safetensors").string()});
  EXPECT_EQ(at({".stfs", "model"}), 0U);
}

TEST_F(ModelDirectory, DoesNotExistForMlx) {
  write_safetensors(dir_ / "model.safetensors", {{"w.weight", "U32", {1}, "abcd"}});
  load();
  EXPECT_NE(at({".stfs", "model"}), 0U) << "a U32 weight without scales does not indicate MLX";
  write_safetensors(dir_ / "model.safetensors",
                    {{"w.scales", "F16", {1}, "ab"}, {"w.weight", "U32", {1}, "abcd"}});
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  write_safetensors(dir_ / "model.safetensors", {{"w", "F32", {1}, "abcd"}},
                    Metadata{{"format", "mlx"}});
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
}

TEST_F(ModelDirectory, FollowsLinksOnlyToRegularFiles) {
  fs::create_directory(dir_ / "data");
  write_file(dir_ / "data/0123", "blob");
  fs::create_symlink("data/0123", dir_ / "vocab.json");
  fs::create_symlink("data/absent", dir_ / "merges.txt");
  fs::create_symlink("/dev/zero", dir_ / "README.md");
  ASSERT_EQ(::mkfifo((dir_ / "LICENSE").c_str(), 0600), 0);
  fs::create_directory(dir_ / "tokenizer");
  load();
  EXPECT_EQ(names(), (Listed{"config.json", "model.safetensors", "tokenizer.json", "vocab.json"}));
  std::string text;
  EXPECT_EQ(read("vocab.json", text), 0);
  EXPECT_EQ(text, "blob");
}

// The author of the directory chose the targets of its links, but the mounting user may be able to
// read more files than that author.
TEST_F(ModelDirectory, DoesNotFollowLinksToOutside) {
  const TempDir outside;
  write_file(outside / "secret", "secret");
  fs::create_symlink(outside / "secret", dir_ / "README.md");
  fs::create_symlink(fs::path("..") / outside.path().filename() / "secret", dir_ / "vocab.txt");
  fs::create_symlink(outside.path(), dir_ / "sub");
  fs::create_symlink("sub/secret", dir_ / "merges.txt");
  fs::create_symlink("README.md", dir_ / "LICENSE");
  fs::create_symlink("/proc/self/environ", dir_ / "modeling.py");
  // The name of this sibling begins with the name of the directory.
  const fs::path sibling = dir_.path().string() + "-2";
  fs::create_directory(sibling);
  write_file(sibling / "secret", "secret");
  fs::create_symlink(sibling / "secret", dir_ / "tekken.json");
  // These links stay inside.
  fs::create_directory(dir_ / "data");
  write_file(dir_ / "data/0123", "inside");
  fs::create_symlink(dir_ / "data/0123", dir_ / "vocab.json");
  fs::create_symlink("../" / dir_.path().filename() / "vocab.json", dir_ / "added_tokens.json");

  load();
  fs::remove_all(sibling);

  EXPECT_EQ(names(), (Listed{"added_tokens.json", "config.json", "model.safetensors",
                             "tokenizer.json", "vocab.json"}));
  for (const char* name :
       {"README.md", "vocab.txt", "merges.txt", "LICENSE", "modeling.py", "tekken.json"}) {
    const auto names_it = [&](const std::string& warning) {
      return warning.find(std::string("/") + name + ": a symbolic link to ") != std::string::npos &&
             warning.find("not in its directory") != std::string::npos;
    };
    EXPECT_TRUE(std::ranges::any_of(checkpoint_->warnings(), names_it)) << name;
  }
  std::string text;
  EXPECT_EQ(read("added_tokens.json", text), 0);
  EXPECT_EQ(text, "inside");
}

TEST_F(ModelDirectory, RejectsConfigLinkedToOutside) {
  const TempDir outside;
  write_file(outside / "config.json", "{}");
  fs::remove(dir_ / "config.json");
  fs::create_symlink(outside / "config.json", dir_ / "config.json");
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  EXPECT_EQ(checkpoint_->warnings().size(), 1U);
}

// models--ORG--NAME/snapshots/COMMIT/config.json -> ../../blobs/0123
TEST_F(ModelDirectory, FollowsHubCacheLinksOnlyToBlobs) {
  for (const char* const model : {"models--a--b", "mine"}) {
    const fs::path cached = dir_ / model;
    const fs::path snapshot = cached / "snapshots/c0ffee";
    fs::create_directories(snapshot);
    fs::create_directories(cached / "blobs");
    write_file(cached / "blobs/0", "{}");
    write_file(cached / "refs", "main");
    fs::copy(dir_ / "model.safetensors", cached / "blobs/1");
    fs::create_symlink("../../blobs/0", snapshot / "config.json");
    fs::create_symlink("../../blobs/1", snapshot / "model.safetensors");
    fs::create_symlink("../../refs", snapshot / "README.md");
    load({}, {snapshot.string()});
    if (model == std::string("mine")) {
      EXPECT_EQ(at({".stfs", "model"}), 0U);
    } else {
      EXPECT_EQ(names(), (Listed{"config.json", "model.safetensors"}));
    }
    EXPECT_EQ(checkpoint_->tensor_count(), 1U) << "links to weights may have any target";
  }
}

TEST_F(ModelDirectory, FollowsOnlyLinksReadableByOtherUsers) {
  fs::create_directories(dir_ / "open");
  fs::create_directories(dir_ / "closed");
  write_file(dir_ / "open/public", "public");
  write_file(dir_ / "open/private", "private");
  write_file(dir_ / "closed/public", "public");
  ASSERT_EQ(::chmod((dir_ / "open/private").c_str(), 0640), 0);
  ASSERT_EQ(::chmod((dir_ / "open/public").c_str(), 0604), 0);
  ASSERT_EQ(::chmod((dir_ / "closed/public").c_str(), 0644), 0);
  ASSERT_EQ(::chmod((dir_ / "open").c_str(), 0711), 0);
  ASSERT_EQ(::chmod((dir_ / "closed").c_str(), 0750), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0700), 0)
      << "the mode of the directory itself does not count";
  ASSERT_EQ(::chmod((dir_ / "config.json").c_str(), 0600), 0)
      << "the mode of a file that is not a link does not count";
  fs::create_symlink("open/public", dir_ / "README.md");
  fs::create_symlink("open/private", dir_ / "vocab.json");
  fs::create_symlink("closed/public", dir_ / "merges.txt");
  fs::create_symlink(".env", dir_ / "LICENSE");
  ASSERT_EQ(::chmod((dir_ / ".env").c_str(), 0600), 0);

  load({}, {}, true);
  EXPECT_EQ(names(), (Listed{"README.md", "config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(checkpoint_->warnings().size(), 3U);

  load();
  EXPECT_EQ(names(), (Listed{"LICENSE", "README.md", "config.json", "merges.txt",
                             "model.safetensors", "tokenizer.json", "vocab.json"}));
}

// Another process replaces a file by a link while checkpoints are loaded. The mount must show only
// files that it has checked.
TEST_F(ModelDirectory, NeverFollowsLinkSwappedInDuringLoad) {
  const TempDir outside;
  write_file(outside / "secret", "secret");
  std::atomic<bool> stop = false;
  std::thread swapping([&] {
    while (!stop) {
      fs::create_symlink(outside / "secret", dir_ / "new");
      fs::rename(dir_ / "new", dir_ / "README.md");
      write_file(dir_ / "new", "public");
      fs::rename(dir_ / "new", dir_ / "README.md");
    }
  });
  for (int i = 0; i < 300; ++i) {
    load();
    std::string text;
    if (at({".stfs", "model", "README.md"}) == 0 || read("README.md", text) != 0) continue;
    EXPECT_NE(text, "secret");
  }
  stop = true;
  swapping.join();
}

TEST_F(ModelDirectory, RewrittenFileGivesESTALEAndIsLogged) {
  load({{"dequantize", "bf16"}});
  for (const char* name : {"config.json", "tokenizer.json"}) {
    write_file(dir_ / name, R"({"another":"text of another size"})");
    std::string text;
    EXPECT_EQ(read(name, text), ESTALE) << name;
    EXPECT_EQ(filesystem_->open(at({".stfs", "model", name})), ESTALE) << name;
    ASSERT_FALSE(log_.empty());
    EXPECT_NE(log_.back().find(name), std::string::npos) << log_.back();
  }
  std::string text;
  EXPECT_EQ(read("model.safetensors", text), 0);
}

TEST_F(ModelDirectory, StillServesReplacedFile) {
  load();
  write_file(dir_ / "new", "{\"other\":1}");
  fs::rename(dir_ / "new", dir_ / "tokenizer.json");
  std::string text;
  EXPECT_EQ(read("tokenizer.json", text), 0);
  EXPECT_EQ(text, "{}");
}

TEST_F(ModelDirectory, DoesNotExistWithTooManyFiles) {
  for (int i = 0; i < 300; ++i) write_file(dir_ / (std::to_string(i) + ".py"), "");
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  ASSERT_EQ(checkpoint_->warnings().size(), 1U);
}

}  // namespace
}  // namespace stfs::test
