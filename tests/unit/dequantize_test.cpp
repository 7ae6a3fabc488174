// Tests of computed tensors of quantised checkpoints: the bytes that a read needs, reads of any
// range, and changed inputs. tests/dequantize tests their values.
#include "core/layer/quantised/dequantize.h"

#include "core/base/error.h"
#include "core/base/vectors.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/mount_source.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/layer/quantised/quantization_config.h"
#include "core/recipe/fetch_missing.h"
#include "core/values/moments.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/allocated.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

std::string packed_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

Layers as_values(DType type) {
  return {{std::string(kDequantizeOption), std::string(dequantized_word(type))}};
}

// Opens late sources, and keeps a pointer to each by the last component of its name.
class ManyLateSources : public Sources {
 public:
  std::unique_ptr<const Source> open(const std::string& name) override {
    auto source = std::make_unique<LateSource>(name);
    opened[fs::path(name).filename().string()] = source.get();
    return source;
  }
  std::map<std::string, LateSource*> opened;
};

// Opens sources that count the bytes read from them.
class CountingSources : public Sources {
 public:
  class Counting : public LateSource {
   public:
    Counting(const std::string& path, std::atomic<std::uint64_t>& all)
        : LateSource(path), all_(all) {}
    int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override {
      all_ += buffer.size();
      return LateSource::read_unverified(buffer, offset);
    }

   private:
    std::atomic<std::uint64_t>& all_;
  };
  std::unique_ptr<const Source> open(const std::string& name) override {
    return std::make_unique<Counting>(name, all);
  }
  std::atomic<std::uint64_t> all = 0;
};

class DequantizeTest : public ::testing::Test {
 protected:
  // Writes E4M3 codes of 1.0 (0x38), [4,256], with a scale for each [2,128] in another file.
  void write_fp8() const {
    write_safetensors(dir_ / "a.safetensors",
                      {{"w.weight", "F8_E4M3", {4, 256}, std::string(1024, '\x38')},
                       {"w.bias", "BF16", {1}, "xy"}});
    write_safetensors(dir_ / "b.safetensors",
                      {{"w.weight_scale_inv", "F32", {2, 2}, packed_floats({1, 2, 3, 4})}});
    write_index(dir_ / "model.safetensors.index.json",
                {{"w.weight", "a.safetensors"},
                 {"w.bias", "a.safetensors"},
                 {"w.weight_scale_inv", "b.safetensors"}},
                1042);
    write_file(dir_ / "config.json",
               R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[2,128]}})");
  }

  std::unique_ptr<const Checkpoint> load(DType type, Sources* sources = nullptr) const {
    const std::string path = dir_.path().string();
    return std::make_unique<const Checkpoint>(
        std::span(&path, 1), LoadOptions{.layers = as_values(type), .sources = sources});
  }

  static std::vector<float> floats_of(const Content& content) {
    std::vector<float> values(content.size() / sizeof(float));
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(values))), 0);
    return values;
  }

  TempDir dir_;
};

TEST_F(DequantizeTest, ComputedTensorReplacesItsInputs) {
  write_fp8();
  const auto checkpoint = load(DType::kF32);
  ASSERT_EQ(checkpoint->tensor_count(), 2U);
  const stfs::Tensor tensor = checkpoint->tensor(0);
  EXPECT_EQ(tensor.name, "w.weight");
  EXPECT_EQ(tensor.path, "w.weight");
  EXPECT_EQ(tensor.dtype, DType::kF32);
  EXPECT_EQ(tensor.length, 4096U);
  EXPECT_FALSE(tensor.locator);
  ASSERT_NE(tensor.computed, nullptr);
  ASSERT_EQ(tensor.computed->inputs().size(), 2U);
  EXPECT_EQ(tensor.computed->inputs()[1].name, "w.weight_scale_inv");
  EXPECT_EQ(checkpoint->name(1), "w.bias");
  EXPECT_TRUE(checkpoint->tensor(1).locator);
  EXPECT_EQ(checkpoint->find("w.weight_scale_inv"), std::nullopt);
  EXPECT_EQ(checkpoint->single_file(), nullptr);
  const std::vector<float> values = floats_of(tensor.content());
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[255], 2);
  EXPECT_EQ(values[2 * 256], 3);
  EXPECT_EQ(values[3 * 256 + 128], 4);
}

TEST_F(DequantizeTest, ReadNeedsOnlyBytesForItsElements) {
  write_fp8();
  ManyLateSources sources;
  const auto checkpoint = load(DType::kBF16, &sources);
  for (const auto& [name, source] : sources.opened) {
    if (name.ends_with(".safetensors")) source->take_bytes_away();
  }
  const Content content = checkpoint->tensor(0).content();
  const std::vector<Extent> missing = content.missing(2 * 256 + 3, 4);  // elements 257 to 259
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0].source, sources.opened["a.safetensors"]);
  EXPECT_EQ(missing[0].length, 3U);
  EXPECT_EQ(missing[1].source, sources.opened["b.safetensors"]);
  EXPECT_EQ(missing[1].length, 2 * sizeof(float));  // a row of scales is always read completely
  std::byte one{};
  EXPECT_EQ(content.copy(0, std::span(&one, 1)), EAGAIN);
}

TEST_F(DequantizeTest, ChangedScaleGivesESTALE) {
  write_fp8();
  const auto checkpoint = load(DType::kBF16);
  const Content content = checkpoint->tensor(0).content();
  write_file(dir_ / "b.safetensors", "other");
  std::byte one{};
  EXPECT_EQ(content.copy(0, std::span(&one, 1)), ESTALE);
  EXPECT_EQ(checkpoint->tensor(0).verify(), ESTALE);
  EXPECT_EQ(checkpoint->tensor(1).verify(), 0);
}

TEST_F(DequantizeTest, OmitsWeightIfShardOfScaleIsMissing) {
  write_fp8();
  fs::remove(dir_ / "b.safetensors");
  const std::string path = dir_.path().string();
  const Checkpoint checkpoint(std::span(&path, 1),
                              {.allow_missing = true, .layers = as_values(DType::kBF16)});
  ASSERT_EQ(checkpoint.tensor_count(), 1U);
  EXPECT_EQ(checkpoint.name(0), "w.bias");
  ASSERT_EQ(checkpoint.missing().size(), 1U);
}

// Incomplete weights are omitted. Complete weights and unrelated tensors in the same files are
// shown.
TEST_F(DequantizeTest, OmitsOnlyIncompleteWeights) {
  const std::string codes(64, '\x38');
  const std::string one = packed_floats({1});
  write_safetensors(dir_ / "a.safetensors",
                    {{"a.weight", "F8_E4M3", {8, 8}, codes},
                     {"a.weight_scale", "F32", {1}, one},
                     {"e.down_blocks", "U8", {1, 2, 1, 16}, std::string(32, 'x')},
                     {"e.down_scales", "U8", {1, 2, 1}, "zz"},
                     {"e.up_blocks", "U8", {1, 2, 1, 16}, std::string(32, 'x')},
                     {"f.down_proj", "F8_E4M3", {8, 8}, codes},
                     {"f.up_proj_scale", "F32", {1}, one},
                     {"n.logit_scale", "F32", {1}, one}});
  std::map<std::string, std::string> index;
  for (const char* const name :
       {"a.weight", "a.weight_scale", "e.down_blocks", "e.down_scales", "e.up_blocks",
        "f.down_proj", "f.up_proj_scale", "n.logit_scale"}) {
    index[name] = "a.safetensors";
  }
  for (const char* const name :
       {"a.input_scale", "e.up_scales", "f.down_proj_scale", "f.up_proj", "n.weight"}) {
    index[name] = "b.safetensors";
  }
  write_index(dir_ / "model.safetensors.index.json", {index.begin(), index.end()}, 0);
  const std::string path = dir_.path().string();
  const Checkpoint checkpoint(std::span(&path, 1),
                              {.allow_missing = true, .layers = as_values(DType::kBF16)});
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    names.emplace_back(checkpoint.name(i));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a.weight", "e.down", "n.logit_scale"}));
}

TEST_F(DequantizeTest, VersionIsSameForRelativeAndAbsolutePaths) {
  for (const char* const name : {"b", "c"}) {
    fs::create_directory(dir_ / name);
    write_safetensors(dir_ / name / "model.safetensors",
                      {{std::string(name) + ".weight", "F8_E4M3", {1}, "8"},
                       {std::string(name) + ".weight_scale", "F32", {1}, packed_floats({1})}});
    write_file(dir_ / name / "config.json", std::string("{\"name\":\"") + name + "\"}");
  }
  const auto version = [](const std::vector<std::string>& paths) {
    return version_of(Checkpoint(paths, {.layers = as_values(DType::kBF16)}).list());
  };
  const std::string b = (dir_ / "b").string();
  const std::string c = (dir_ / "c").string();
  EXPECT_EQ(version({fs::relative(b).string(), c}), version({b, c}));
}

// An unknown key may change the values. The keys that libraries are known to write do not.
TEST_F(DequantizeTest, WarnsAboutUnknownConfigKey) {
  write_fp8();
  EXPECT_TRUE(load(DType::kBF16)->warnings().empty());
  write_file(dir_ / "config.json", R"({"hidden_size":1,"quantization_config":{"quant_method":"fp8",
      "weight_block_size":[2,128],"fmt":"e4m3","scale_order":"swizzled","a\nb":1,"c":null,"d":{}}})");
  const auto checkpoint = load(DType::kBF16);
  ASSERT_EQ(checkpoint->warnings().size(), 1U);
  const std::string& line = checkpoint->warnings().front();
  EXPECT_NE(line.find("config.json"), std::string::npos) << line;
  EXPECT_NE(line.find("\"scale_order\""), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  EXPECT_EQ(line.find("\"c\""), std::string::npos) << line;
}

// A key is a module if names of tensors begin with it.
TEST_F(DequantizeTest, WarnsAboutUnknownMlxKey) {
  const std::string zeros(16, '\0');
  write_safetensors(dir_ / "model.safetensors", {{"m.a.weight", "U32", {1, 4}, zeros},
                                                 {"m.a.scales", "F16", {1, 1}, "ab"},
                                                 {"m.a.biases", "F16", {1, 1}, "ab"},
                                                 {"n.o.weight", "BF16", {1}, "ab"}});
  const auto expect = [&](const std::string& module, std::string_view words) {
    write_file(dir_ / "config.json",
               R"({"quantization":{"bits":4,"group_size":32,"lm_head":false,"n":false,)" + module +
                   R"(:{"bits":4,"group_size":32,"inside":3},"beside":true,"m.b":{"bits":8}}})");
    const auto checkpoint = load(DType::kBF16);
    ASSERT_EQ(checkpoint->warnings().size(), 1U);
    const std::string& line = checkpoint->warnings().front();
    EXPECT_NE(line.find(words), std::string::npos) << line;
  };
  expect(R"("m.a")", R"(: unknown keys "beside", "inside": the)");
  expect(R"("p.m.a")", R"(: unknown keys "beside", "inside", "m.b", "p.m.a": the)");
}

TEST_F(DequantizeTest, WarnsAboutUnknownKeyInLayerText) {
  const auto expect = [&](const std::string& keys, const std::string& text) {
    const std::string mark = R"({"format":"float8_e4m3fn",)" + keys + "}";
    write_safetensors(dir_ / "model.safetensors",
                      {{"a.weight", "F8_E4M3", {1, 2}, "ab"},
                       {"a.weight_scale", "F32", {}, std::string(4, '\0')},
                       {"a.comfy_quant", "U8", {mark.size()}, mark}});
    const auto checkpoint = load(DType::kBF16);
    std::string lines;
    for (const std::string& line : checkpoint->warnings()) lines += line;
    EXPECT_NE(lines.find(text), std::string::npos) << lines;
    EXPECT_EQ(lines.empty(), text.empty()) << lines;
  };
  expect(R"("full_precision_matrix_mult":true,"params":{"group_size":16},"zero":null)", "");
  expect(R"("row_order":[1],"params":{"order":1})", R"(: unknown keys "order", "row_order": the)");
  const std::string tensor = R"({"_type":"Float8Tensor","_data":{"block_size":[1,2],"order":1}})";
  write_safetensors(dir_ / "model.safetensors",
                    {{"a._weight_qdata", "F8_E4M3", {1, 2}, "ab"},
                     {"a._weight_scale", "F32", {1, 1}, std::string(4, '\0')}},
                    Metadata{{"a.weight", tensor}});
  const auto checkpoint = load(DType::kBF16);
  ASSERT_EQ(checkpoint->warnings().size(), 1U);
  EXPECT_NE(checkpoint->warnings().front().find(R"(: unknown key "order": the)"),
            std::string::npos);
}

TEST_F(DequantizeTest, KnownLibraryKeysGiveNoWarning) {
  write_fp8();
  for (const char* const keys :
       {R"("include_input_output_embeddings":true,"untie_embedding_weights":true,
           "quant_type_kwargs":{"a":1})",
        R"("pre_quant_scale":true,"config_groups":{"a":{"quant_algo":"FP8"}})"}) {
    write_file(dir_ / "config.json", R"({"quantization_config":{"quant_method":"fp8",
        "weight_block_size":[2,128],)" + std::string(keys) +
                                         "}}");
    EXPECT_TRUE(load(DType::kBF16)->warnings().empty()) << keys;
  }
}

TEST_F(DequantizeTest, UnreadableConfigThrows) {
  write_fp8();
  fs::remove(dir_ / "config.json");
  fs::create_directory(dir_ / "config.json");
  EXPECT_THROW(load(DType::kBF16), Error);
}

TEST_F(DequantizeTest, RejectsConfigWithTooManyValuesInBoundedMemory) {
  write_fp8();
  for (const char* const value : {"{}", "0", "[]", "{\"a\":0}"}) {
    std::string text = R"({"quantization_config":{"a":[)";
    while (text.size() < 7'000'000) text += std::string(value) + ",";
    write_file(dir_ / "config.json", text + "0]}}");
#ifndef STFS_SANITIZED
    const std::uint64_t before = allocated_bytes();
#endif
    try {
      load(DType::kBF16);
      ADD_FAILURE() << "accepted";
    } catch (const Error& refusal) {
      EXPECT_NE(std::string(refusal.what()).find("too many values"), std::string::npos)
          << refusal.what();
    }
#ifndef STFS_SANITIZED
    EXPECT_LT(allocated_bytes() - before, 32U << 20) << value;
#endif
  }
}

// Returns `count` copies of a text, separated by commas. "%" is replaced by the number of the copy.
std::string repeated(std::size_t count, std::string_view text) {
  const std::size_t place = text.find('%');
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    all += i == 0 ? "" : ",";
    all += text.substr(0, place);
    if (place == std::string_view::npos) continue;
    all += std::to_string(i);
    all += text.substr(place + 1);
  }
  return all;
}

class CostTest : public DequantizeTest {
 protected:
  // Writes 300 weights with scales. Their names are as long as the names of experts.
  void write_many() const {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 300; ++i) {
      const std::string name = "model.layers." + std::to_string(i) + "." + std::string(150, 'a');
      tensors.push_back({name + ".weight", "F8_E4M3", {1, 1}, "8"});
      tensors.push_back({name + ".weight_scale", "F32", {1}, packed_floats({1})});
    }
    write_safetensors(dir_ / "model.safetensors", tensors);
  }

  // Loads the checkpoint. It must fail with these words, or succeed if `words` is "".
  void expect(const std::string& what, std::string_view words) const {
#ifndef STFS_SANITIZED
    const std::uint64_t before = allocated_bytes();
#endif
    try {
      load(DType::kBF16);
      EXPECT_EQ(words, "") << what;
    } catch (const Error& refusal) {
      const std::string message = refusal.what();
      EXPECT_LT(message.size(), 1000U) << what;
      EXPECT_FALSE(words.empty()) << what << ": " << message;
      EXPECT_NE(message.find(words), std::string::npos) << what << ": " << message;
    }
#ifndef STFS_SANITIZED
    EXPECT_LT(allocated_bytes() - before, 100U << 20) << what;
#endif
  }
};

// Each row is a tenth of the largest possible config. Without limits it would need gigabytes or
// minutes.
TEST_F(CostTest, LargeConfigUsesBoundedMemory) {
  write_many();
  const auto groups = [](const std::string& targets) {
    return R"({"quant_method":"compressed-tensors","config_groups":{"a":{"targets":[)" + targets +
           R"(]},"b":{"targets":["Linear"]}}})";
  };
  const auto with = [](const std::string& more) {
    return R"({"quant_method":"fp8",)" + more + "}";
  };
  constexpr const char* kTooLong = "expressions for names of modules are too many or too long";
  constexpr const char* kTooSlow = "takes too long";
  const struct {
    const char* what;
    std::string config;
    const char* words;
  } kRows[] = {
      {"equal expressions", groups(repeated(50'000, R"("re:a{4090}")")), kTooLong},
      {"expressions", groups(repeated(50'000, R"("re:a{4%}")")), kTooLong},
      {"expressions that are not known", groups(repeated(50'000, R"("re:a{4096}*")")), kTooLong},
      {"slow expressions", groups(repeated(20, R"("re:(?:.?){1000}b%$")")), kTooSlow},
      {"groups", with(R"("config_groups":{)" + repeated(30'000, R"("%":{})") + "}"),
       "more than 4096 groups"},
      {"names", groups(repeated(60'000, R"("%")")), ""},
      {"exceptions", with(R"("dynamic":{)" + repeated(60'000, R"("%":1)") + "}"), ""},
      {"exceptions that are expressions",
       with(R"("extra_config":{)" + repeated(40'000, R"("a{4090}%":1)") + "}"), kTooLong},
      {"unknown keys", with(repeated(60'000, R"("k%":1)")), ""},
      {"modules", with(repeated(50'000, R"("k%":true)")), ""},
  };
  for (const auto& row : kRows) {
    const char* const key =
        std::string_view(row.what) == "modules" ? "quantization" : "quantization_config";
    const std::string text = R"({")" + std::string(key) + R"(":)" + row.config + "}";
    ASSERT_LT(text.size(), 3U << 20) << row.what;
    write_file(dir_ / "config.json", text);
    expect(row.what, row.words);
  }
}

// The header has a long name, or a text that is named many times.
TEST_F(CostTest, LongNamesAndTextsUseBoundedMemory) {
  const std::vector<Tensor> weight = {{"m.weight", "F8_E4M3", {1, 1}, "8"},
                                      {"m.weight_scale", "F32", {1}, packed_floats({1})}};
  for (const std::string_view word : {"_s", "_scale", "."}) {
    std::vector<Tensor> tensors = weight;
    std::string name = "x";
    while (name.size() < 2'000'000) name += word;
    tensors.push_back({name + "x", "U8", {1}, "x"});
    write_safetensors(dir_ / "model.safetensors", tensors);
    expect(std::string(word), "");
  }
  const std::string text =
      R"({"_type":"Float8Tensor","_data":{"block_size":[)" + repeated(200'000, "1") + "]}}";
  write_safetensors(
      dir_ / "model.safetensors", weight,
      Metadata{{"tensor_names", "[" + repeated(100'000, R"("w")") + "]"}, {"w", text}});
  expect("tensor_names", "");
}

TEST_F(CostTest, CutsLongConfigTextsInMessage) {
  write_safetensors(dir_ / "model.safetensors", {{"m.weight", "U8", {1}, "8"}});
  write_file(dir_ / "config.json", R"({"quantization_config":{"quant_method":"fp8","format":")" +
                                       std::string(3'000'000, 'A') + "\"}}");
  expect("format", "no tensor is stored in a known way of this method");
}

// Python writes Infinity for models with Mamba layers.
TEST_F(DequantizeTest, AcceptsPythonInfinitiesInConfig) {
  write_fp8();
  const std::string quantization =
      R"("quantization_config":{"quant_method":"fp8","weight_block_size":[2,128],"new":"NaN"})";
  for (const char* const value :
       {"Infinity", "-Infinity", "NaN", "[0.0, Infinity]", R"({"a\"":NaN,"b":-Infinity})"}) {
    write_file(dir_ / "config.json",
               R"({"time_step_limit":)" + std::string(value) + "," + quantization + "}");
    EXPECT_EQ(load(DType::kBF16)->warnings().size(), 1U) << value;
  }
  for (const char* const value : {"Infinit", "--Infinity", "NaNNaN", "1NaN", "nan"}) {
    write_file(dir_ / "config.json", R"({"a":)" + std::string(value) + "," + quantization + "}");
    EXPECT_THROW(load(DType::kBF16), Error) << value;
  }
}

// A key applies to the modules with names that begin with it. The full name of a module applies
// only to that module.
TEST(QuantizationConfigTest, FindsExceptionsByNameAndPattern) {
  const TempDir dir;
  write_file(dir / "config.json", R"({"quantization_config":{"quant_method":"auto-round",
      "dynamic":{"+:b.1":{"group_size":1},"-:.*c$":{"group_size":2},"?":{"group_size":3}},
      "extra_config":{"a":{"group_size":4},"a.b":{"group_size":5},"b.1.c":{"group_size":6}}}})");
  Sources sources;
  const QuantizationConfig config = read_quantization_config(dir.path().string(), sources);
  MatchingWork work{.most = 1 << 20};
  const auto sizes = [&](std::string_view module) {
    std::vector<std::uint64_t> all;
    for (const auto* const each : exceptions_of(config, module, work)) {
      all.push_back(each->group_size.value_or(0));
    }
    return all;
  };
  using Sizes = std::vector<std::uint64_t>;
  EXPECT_EQ(sizes("a"), Sizes({4}));
  EXPECT_EQ(sizes("a.b.d"), Sizes({4, 5, 3}));
  EXPECT_EQ(sizes("b.1.c"), Sizes({6}));
  EXPECT_EQ(sizes("b.12.c"), Sizes({1, 2, 3}));
  EXPECT_EQ(sizes("d"), Sizes({3}));
  work = {.most = 100};
  EXPECT_THROW(for (int i = 0; i < 100; ++i) sizes("b.12.c"), Error);
}

// The code that visits the config is recursive, so the depth must be limited.
TEST_F(DequantizeTest, RejectsTooDeeplyNestedConfig) {
  write_fp8();
  const auto config = [](std::size_t depth) {
    return R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[2,128],"a":)" +
           std::string(depth, '[') + std::string(depth, ']') + "}}";
  };
  write_file(dir_ / "config.json", config(60));
  EXPECT_NO_THROW(load(DType::kBF16));
  write_file(dir_ / "config.json", config(100));
  EXPECT_THROW(load(DType::kBF16), Error);
}

// Each block has one row, and neighbouring columns use rows at opposite ends of the scales.
TEST_F(DequantizeTest, ScatteredGroupIndexReadsBoundedBytes) {
  constexpr std::uint64_t kIn = 8192;
  constexpr std::uint64_t kOut = 1024;
  std::vector<std::int32_t> index(kIn);
  for (std::size_t i = 0; i < kIn; ++i) {
    index[i] = static_cast<std::int32_t>(i % 2 == 0 ? i / 2 : kIn - 1 - i / 2);
  }
  write_safetensors(
      dir_ / "model.safetensors",
      {random_tensor("w.qweight", "I32", {kIn / 8, kOut}, 1),
       random_tensor("w.qzeros", "I32", {kIn, kOut / 8}, 2),
       {"w.g_idx", "I32", {kIn}, {reinterpret_cast<const char*>(index.data()), kIn * 4}},
       {"w.scales", "F16", {kIn, kOut}, std::string(kIn * kOut * 2, '\x3c')}});
  write_file(dir_ / "config.json",
             R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":1}})");
  CountingSources sources;
  const auto checkpoint = load(DType::kBF16, &sources);
  sources.all = 0;
  std::vector<std::byte> part(4096);
  ASSERT_EQ(checkpoint->tensor(0).content().copy(0, part), 0);
  EXPECT_LE(sources.all, std::uint64_t{64} << 20);
}

// A GPTQ tensor in which tiles are cut at both edges.
TEST_F(DequantizeTest, ReadsAnyByteRangeOfTransposedTensor) {
  constexpr std::uint64_t kIn = 2560;
  constexpr std::uint64_t kOut = 72;
  write_safetensors(dir_ / "model.safetensors",
                    {random_tensor("w.qweight", "I32", {kIn / 8, kOut}, 1),
                     random_tensor("w.qzeros", "I32", {kIn / 128, kOut / 8}, 2),
                     {"w.scales", "F16", {kIn / 128, kOut}, [] {
                        std::string halves;
                        for (std::uint64_t i = 0; i < kIn / 128 * kOut; ++i) {
                          halves += static_cast<char>(i % 251);
                          halves += '\x3c';
                        }
                        return halves;
                      }()}});
  write_file(dir_ / "config.json",
             R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128}})");
  const auto checkpoint = load(DType::kBF16);
  const Content content = checkpoint->tensor(0).content();
  std::vector<std::byte> whole(content.size());
  ASSERT_EQ(whole.size(), kIn * kOut * 2);
  ASSERT_EQ(content.copy(0, whole), 0);
  RandomBytes random(7);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t offset = random.next() % whole.size();
    const auto length = static_cast<std::size_t>(random.next() % (whole.size() - offset));
    std::vector<std::byte> part(length);
    ASSERT_EQ(load(DType::kBF16)->tensor(0).content().copy(offset, part), 0);
    ASSERT_EQ(std::memcmp(part.data(), whole.data() + offset, length), 0)
        << offset << " " << length;
  }
}

// A checkpoint with GPTQ with an index, INT4 of compressed-tensors and MXFP4 of gpt-oss, in unusual
// shapes.
class MixedTest : public DequantizeTest {
 protected:
  void SetUp() override {
    std::vector<std::int32_t> index(1152);
    for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i * 5 % 9);
    const std::string order(reinterpret_cast<const char*>(index.data()), index.size() * 4);
    const auto numbers = [](std::size_t count) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = 0.01F * static_cast<float>(i % 101 + 1);
      return packed_floats(values);
    };
    write_safetensors(dir_ / "model.safetensors",
                      {random_tensor("w.qweight", "I32", {144, 1240}, 1),
                       random_tensor("w.qzeros", "I32", {9, 155}, 2),
                       {"w.scales", "F32", {9, 1240}, numbers(9 * 1240)},
                       {"w.g_idx", "I32", {1152}, order},
                       random_tensor("v.weight_packed", "I32", {300, 60}, 3),
                       {"v.weight_scale", "F32", {300, 15}, numbers(4500)},
                       random_tensor("e.up_blocks", "U8", {2, 1100, 33, 16}, 4),
                       {"e.up_scales", "U8", {2, 1100, 33}, std::string(72600, '\x79')}});
    write_file(dir_ / "config.json", R"({"quantization_config":{"quant_method":"gptq","bits":4,
        "config_groups":{"g":{"weights":{"num_bits":4,"group_size":32}}}}})");
  }
};

TEST_F(MixedTest, ValuesDoNotDependOnVectorTarget) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    std::set<std::vector<std::byte>> found;
    with_each_target([&](const char*) {
      const auto checkpoint = load(DType::kF32);
      ASSERT_EQ(checkpoint->tensor_count(), 3U);
      const Content content = checkpoint->tensor(i).content();
      std::vector<std::byte> bytes(content.size());
      EXPECT_EQ(content.copy(0, bytes), 0);
      found.insert(bytes);
    });
    EXPECT_EQ(found.size(), 1U) << i;
  }
}

TEST_F(MixedTest, ConcurrentReadersGetSameValues) {
  const auto single = load(DType::kBF16);
  const auto shared = load(DType::kBF16);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Content expected = single->tensor(i).content();
    std::vector<std::byte> whole(expected.size());
    ASSERT_EQ(expected.copy(0, whole), 0);
    const Content content = shared->tensor(i).content();
    std::vector<std::thread> readers;
    for (unsigned seed = 1; seed <= 6; ++seed) {
      readers.emplace_back([&, seed] {
        RandomBytes random(seed);
        for (int k = 0; k < 20; ++k) {
          const std::uint64_t offset = random.next() % whole.size();
          const std::uint64_t most = std::min<std::uint64_t>(whole.size() - offset, 600'000);
          std::vector<std::byte> part(static_cast<std::size_t>(1 + random.next() % most));
          EXPECT_EQ(content.copy(offset, part), 0);
          EXPECT_EQ(std::memcmp(part.data(), whole.data() + offset, part.size()), 0)
              << i << " " << offset << "+" << part.size();
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
  }
}

// The matrix is from a 70B model. Its tiles touch many bytes of a source that keeps only a few.
TEST_F(DequantizeTest, TileNeedsNoMoreBytesThanSourceKeeps) {
  constexpr std::uint64_t kIn = 2048;
  constexpr std::uint64_t kOut = 28672;
  write_safetensors(dir_ / "a.safetensors",
                    {{"w.qweight", "I32", {kIn, kOut / 8}, std::string(kIn * kOut / 2, '\x21')}});
  write_safetensors(dir_ / "b.safetensors",
                    {{"w.qzeros", "I32", {16, kOut / 8}, std::string(16 * kOut / 2, '\0')},
                     {"w.scales", "F16", {16, kOut}, std::string(32 * kOut, '\x3c')}});
  write_index(dir_ / "model.safetensors.index.json", {{"w.qweight", "a.safetensors"},
                                                      {"w.qzeros", "b.safetensors"},
                                                      {"w.scales", "b.safetensors"}});
  write_file(dir_ / "config.json", R"({"quantization_config":{"quant_method":"awq","bits":4}})");
  ManyLateSources sources;
  const auto checkpoint = load(DType::kBF16, &sources);
  for (const auto& [name, source] : sources.opened) {
    if (!name.ends_with(".safetensors")) continue;
    source->take_bytes_away();
    source->deliver_at_once();
    source->keep_at_most(kMaxMissing);
  }
  const Content content = checkpoint->tensor(0).content();
  std::uint64_t length = 4096;
  EXPECT_FALSE(missing_part(content, kIn * 2, length).empty());
  EXPECT_GT(length, 100U);
  std::vector<std::byte> part(4096);
  EXPECT_EQ(SequentialReader(content).copy(kIn * 2, part), 0);
}

// Fetches only the bytes that missing() names, like a reader of a remote checkpoint.
TEST_F(DequantizeTest, MissingNamesAllBytesNeededForRange) {
  std::vector<std::int32_t> index(2112);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i * 5 % 33);
  const std::string order(reinterpret_cast<const char*>(index.data()), index.size() * 4);
  const auto numbers = [](std::size_t count) {
    return packed_floats(std::vector<float>(count, 1.5F));
  };
  write_safetensors(dir_ / "a.safetensors",
                    {random_tensor("w.qweight", "I32", {198, 1280}, 1),
                     random_tensor("v.weight_packed", "I32", {300, 60}, 2),
                     {"v.weight_zero_point", "I32", {29, 20}, std::string(29 * 80, '\x37')},
                     random_tensor("e.up_blocks", "U8", {2, 2100, 3, 16}, 3)});
  write_safetensors(dir_ / "b.safetensors",
                    {random_tensor("w.qzeros", "I32", {33, 120}, 4),
                     {"w.scales", "F32", {33, 1280}, numbers(33 * 1280)},
                     {"w.g_idx", "I32", {2112}, order},
                     {"v.weight_scale", "F32", {300, 20}, numbers(6000)},
                     {"e.up_scales", "U8", {2, 2100, 3}, std::string(12600, '\x7f')}});
  std::map<std::string, std::string> files;
  for (const char* const name :
       {"w.qweight", "v.weight_packed", "v.weight_zero_point", "e.up_blocks"}) {
    files[name] = "a.safetensors";
  }
  for (const char* const name :
       {"w.qzeros", "w.scales", "w.g_idx", "v.weight_scale", "e.up_scales"}) {
    files[name] = "b.safetensors";
  }
  write_index(dir_ / "model.safetensors.index.json", files);
  write_file(dir_ / "config.json", R"({"quantization_config":{"quant_method":"gptq","bits":3,
      "config_groups":{"g":{"weights":{"num_bits":3,"group_size":32}}}}})");
  const auto local = load(DType::kF16);
  ASSERT_EQ(local->tensor_count(), 3U);
  RandomBytes random(5);
  for (int i = 0; i < 45; ++i) {
    ManyLateSources sources;
    const auto checkpoint = load(DType::kF16, &sources);
    const stfs::Tensor tensor = checkpoint->tensor(static_cast<std::uint32_t>(i) % 3);
    const Content content = tensor.content();
    for (const auto& [name, source] : sources.opened) {
      source->take_bytes_away();
      source->deliver_at_once();
    }
    const std::uint64_t offset = random.next() % content.size();
    const std::uint64_t most = std::min<std::uint64_t>(content.size() - offset, 20000);
    const auto length = static_cast<std::size_t>(1 + random.next() % most);
    for (const Extent& each : content.missing(offset, length)) {
      each.source->want({each.offset, each.length}, [](int) {});
    }
    std::vector<std::byte> part(length);
    std::vector<std::byte> expected(length);
    ASSERT_EQ(content.copy(offset, part), 0) << tensor.name << " " << offset << "+" << length;
    ASSERT_EQ(local->tensor(static_cast<std::uint32_t>(i) % 3).content().copy(offset, expected), 0);
    ASSERT_EQ(part, expected) << tensor.name << " " << offset << "+" << length;
  }
}

TEST_F(DequantizeTest, OverflowingLayoutFitsNoInputs) {
  QuantizedLayout layout;
  layout.rows = std::uint64_t{1} << 40;
  layout.columns = std::uint64_t{1} << 40;
  EXPECT_EQ(misfit(layout, {}), Role::kWeight);
}

// Each read loads the index, so its size is limited.
TEST_F(DequantizeTest, GroupIndexWithTooManyColumnsDoesNotFit) {
  constexpr std::uint64_t kColumns = (std::uint64_t{1} << 20) + 1;
  QuantizedLayout layout;
  layout.rows = 1;
  layout.columns = kColumns;
  layout.grid_rows = 1;
  layout.grid_columns = 1;
  layout.block_columns = kColumns;
  layout.weight = {.codes = Codes::kSigned, .pitch = kColumns, .matrix = kColumns};
  layout.scale = {.codes = Codes::kTyped, .type = DType::kF32, .pitch = 4, .matrix = 4};
  InputLengths inputs;
  inputs[static_cast<std::size_t>(Role::kWeight)] = kColumns;
  inputs[static_cast<std::size_t>(Role::kScale)] = 4;
  EXPECT_EQ(misfit(layout, inputs), std::nullopt);
  inputs[static_cast<std::size_t>(Role::kIndex)] = kColumns * 4;
  EXPECT_EQ(misfit(layout, inputs), Role::kIndex);
}

TEST(TileCacheTest, KeepsMostRecentlyReadTiles) {
  constexpr std::size_t kTile = TileCache::kMost / 4;
  TileCache cache;
  for (std::uint64_t i = 0; i < 5; ++i) {
    const auto tile = cache.get({0, i, 0}, kTile);
    tile->is_ready = true;
  }
  EXPECT_FALSE(cache.has({0, 0, 0}));
  EXPECT_TRUE(cache.has({0, 1, 0}));
  EXPECT_TRUE(cache.has({0, 4, 0}));
}

TEST(TileCacheTest, ReusesMemoryOfEvictedTile) {
  constexpr std::size_t kTile = TileCache::kMost / 2;
  TileCache cache;
  const std::byte* const first = cache.get({0, 0, 0}, kTile)->buffer.get();
  const std::byte* const second = cache.get({0, 1, 0}, kTile)->buffer.get();
  EXPECT_NE(first, second);
  EXPECT_EQ(cache.get({0, 2, 0}, kTile)->buffer.get(), first);
  EXPECT_NE(cache.get({0, 3, 0}, kTile / 2)->buffer.get(), second);
}

}  // namespace
}  // namespace stfs::test
