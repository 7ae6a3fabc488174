// `.stfs/model/`: the files that loaders look for, and the text of config.json without its
// quantisation. Whole checkpoints are tested in tests/dequantize.
#include "core/checkpoint/model_files.h"

#include "core/checkpoint/checkpoint.h"
#include "fs/mount/filesystem.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/unit/served_checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

TEST(ModelFiles, AreThoseThatLoadersLookFor) {
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

TEST(ModelFiles, AConfigLosesItsQuantisationAndNothingElse) {
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

TEST(ModelFiles, AConfigWithoutATypeGetsOne) {
  EXPECT_EQ(without_quantisation(R"({"quantization":{},"a":1})", DType::kBF16),
            R"({"a":1,"torch_dtype": "bfloat16"})");
  EXPECT_EQ(without_quantisation("{\n  \"a\": 1\n}", DType::kF32),
            "{\n  \"a\": 1,\n  \"torch_dtype\": \"float32\"\n}");
  EXPECT_EQ(without_quantisation(R"({"quantization":{}})", DType::kF32),
            R"({"torch_dtype": "float32"})");
  EXPECT_EQ(without_quantisation(R"( {"dtype":null} )", DType::kF32), R"( {"dtype":"float32"} )");
  // A type for each part of the model.
  EXPECT_EQ(without_quantisation(R"({"dtype":{"text_config":"float8"}})", DType::kF32),
            R"({"dtype":"float32"})");
  EXPECT_EQ(without_quantisation("\xEF\xBB\xBF{\"a\":1}", DType::kF32),
            "\xEF\xBB\xBF{\"a\":1,\"torch_dtype\": \"float32\"}");
}

TEST(ModelFiles, WhatIsNoObjectIsNoConfig) {
  for (const char* text : {"", "[]", "{", "nul", "{\"a\":1}}", "\"x\"", "{\"\xff\":1}"}) {
    EXPECT_EQ(without_quantisation(text, DType::kF32), std::nullopt) << text;
  }
  // Deep objects cost no stack.
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

  void load(std::optional<DType> dequantize = std::nullopt, std::vector<std::string> paths = {}) {
    if (paths.empty()) paths.push_back(dir_.path().string());
    filesystem_.reset();
    checkpoint_ = std::make_unique<const Checkpoint>(
        paths, LoadOptions{.dequantize = dequantize, .with_model_files = true});
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

using Names = std::vector<std::string>;

TEST_F(ModelDirectory, HoldsTheMergedFileAndWhatLoadersLookFor) {
  load();
  EXPECT_EQ(names(), (Names{"config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(at({".stfs", "model", "model.safetensors"}), at({".stfs", "merged.safetensors"}));
  EXPECT_EQ(at({".stfs", "model", ".env"}), 0U);
  std::string text;
  EXPECT_EQ(read("config.json", text), 0);
  EXPECT_EQ(text, R"({"a":1,"torch_dtype":"float8"})");

  load(DType::kBF16);
  EXPECT_EQ(read("config.json", text), 0);
  EXPECT_EQ(text, R"({"a":1,"torch_dtype":"bfloat16"})");
  EXPECT_EQ(filesystem_->attributes(at({".stfs", "model", "config.json"}))->size, text.size());
}

TEST_F(ModelDirectory, IsThereForAFileAnIndexAndADirectory) {
  write_index(dir_ / "model.safetensors.index.json", {{"w", "model.safetensors"}}, 4);
  for (const fs::path& path :
       {dir_.path(), dir_ / "model.safetensors", dir_ / "model.safetensors.index.json"}) {
    load({}, {path.string()});
    EXPECT_NE(at({".stfs", "model", "config.json"}), 0U) << path;
  }
}

TEST_F(ModelDirectory, IsNotThereWithoutAConfigOrForSeveralSources) {
  write_safetensors(dir_ / "other.safetensors", {{"v", "F32", {1}, "abcd"}});
  load({}, {(dir_ / "model.safetensors").string(), (dir_ / "other.safetensors").string()});
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  fs::remove(dir_ / "config.json");
  load({}, {(dir_ / "model.safetensors").string()});
  EXPECT_EQ(at({".stfs", "model"}), 0U);
}

TEST_F(ModelDirectory, IsNotThereForMlx) {
  write_safetensors(dir_ / "model.safetensors", {{"w.weight", "U32", {1}, "abcd"}});
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  write_safetensors(dir_ / "model.safetensors", {{"w", "F32", {1}, "abcd"}},
                    Metadata{{"format", "mlx"}});
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
}

TEST_F(ModelDirectory, FollowsLinksToRegularFilesAlone) {
  const TempDir blobs;
  write_file(blobs / "0123", "blob");
  fs::create_symlink(blobs / "0123", dir_ / "vocab.json");
  fs::create_symlink(blobs / "absent", dir_ / "merges.txt");
  fs::create_symlink("/dev/zero", dir_ / "README.md");
  ASSERT_EQ(::mkfifo((dir_ / "LICENSE").c_str(), 0600), 0);
  fs::create_directory(dir_ / "tokenizer");
  load();
  EXPECT_EQ(names(), (Names{"config.json", "model.safetensors", "tokenizer.json", "vocab.json"}));
  std::string text;
  EXPECT_EQ(read("vocab.json", text), 0);
  EXPECT_EQ(text, "blob");
}

TEST_F(ModelDirectory, AFileThatIsRewrittenIsEstaleAndLogged) {
  load(DType::kBF16);
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

TEST_F(ModelDirectory, AFileThatIsReplacedIsServedOn) {
  load();
  write_file(dir_ / "new", "{\"other\":1}");
  fs::rename(dir_ / "new", dir_ / "tokenizer.json");
  std::string text;
  EXPECT_EQ(read("tokenizer.json", text), 0);
  EXPECT_EQ(text, "{}");
}

TEST_F(ModelDirectory, OfTooManyFilesThereIsNone) {
  for (int i = 0; i < 300; ++i) write_file(dir_ / (std::to_string(i) + ".py"), "");
  load();
  EXPECT_EQ(at({".stfs", "model"}), 0U);
  ASSERT_EQ(checkpoint_->warnings().size(), 1U);
}

}  // namespace
}  // namespace stfs::test
