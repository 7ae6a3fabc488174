// Tests of adapters: compares their values with a naive loop on every vector target, and tests the
// matching of names and the rejection of unsupported adapters.
#include "core/base/error.h"
#include "core/base/vectors.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/narrow.h"
#include "core/layer/lora/adapter.h"
#include "core/layer/lora/lora_layer.h"
#include "core/layer/lora/targets.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using Shape = std::vector<std::uint64_t>;

std::string f32_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
std::string bf16_bytes(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    const std::uint16_t half = to_bf16(std::bit_cast<std::uint32_t>(value));
    bytes.append(reinterpret_cast<const char*>(&half), sizeof half);
  }
  return bytes;
}
// Rounds the values to BF16.
std::vector<float> as_bf16(std::vector<float> values) {
  for (float& value : values) {
    const std::uint32_t half = to_bf16(std::bit_cast<std::uint32_t>(value));
    value = std::bit_cast<float>(half << 16);
  }
  return values;
}

class LoraTest : public ::testing::Test {
 protected:
  std::vector<float> some(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return as_bf16(values);
  }

  // Writes an adapter into the directory `name`.
  void write_adapter(const std::string& name, const std::string& config,
                     const std::vector<stfs::test::Tensor>& tensors) const {
    std::filesystem::create_directory(dir_ / name);
    write_file(dir_ / name / "adapter_config.json", config);
    write_safetensors(dir_ / name / "adapter_model.safetensors", tensors);
  }

  std::unique_ptr<const Checkpoint> load(const std::vector<std::string>& adapters) const {
    Layers layers;
    for (const std::string& adapter : adapters) choose(layers, kLoraOption, adapter);
    const std::string path = dir_ / "base.safetensors";
    return std::make_unique<const Checkpoint>(std::span(&path, 1), LoadOptions{.layers = layers});
  }
  std::string adapter(const std::string& name) const { return dir_ / name; }

  static std::string bytes_of(const Checkpoint& checkpoint, std::string_view name) {
    const Content content = checkpoint.tensor(checkpoint.find(name).value()).content();
    std::string bytes(content.size(), '\0');
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(bytes))), 0);
    return bytes;
  }
  std::string refusal(const std::vector<std::string>& adapters) const {
    try {
      load(adapters);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAdapter) << error.what();
      return error.what();
    }
    return "";
  }

  TempDir dir_;
  std::mt19937 random_{1};  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same values in each run
};

constexpr const char* kConfig = R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6})";

// Adds s * (sum over k of b[i,k] * a[k,j]) to values[i,j], with rounding after each step.
void add_naively(std::vector<float>& values, const std::vector<float>& a,
                 const std::vector<float>& b, std::size_t rank, float s) {
  const std::size_t columns = a.size() / rank;
  for (std::size_t i = 0; i < values.size() / columns; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < rank; ++k) sum = sum + b[i * rank + k] * a[k * columns + j];
      values[i * columns + j] = values[i * columns + j] + s * sum;
    }
  }
}

std::vector<float> transposed(const std::vector<float>& in, std::size_t columns) {
  std::vector<float> out(in.size());
  const std::size_t rows = in.size() / columns;
  for (std::size_t i = 0; i < in.size(); ++i) out[i % columns * rows + i / columns] = in[i];
  return out;
}

TEST_F(LoraTest, ValuesMatchNaiveLoopOnAllVectorTargets) {
  constexpr std::uint64_t kOut = 19, kIn = 70;
  const std::vector<float> w = some(kOut * kIn), a = some(3 * kIn), b = some(kOut * 3);
  const std::vector<float> a2 = some(5 * kIn), b2 = some(kOut * 5);
  write_safetensors(dir_ / "base.safetensors", {{"m.q.weight", "BF16", {kOut, kIn}, bf16_bytes(w)},
                                                {"m.k.weight", "BF16", {1}, "xy"}});
  write_adapter("one", kConfig,
                {{"base_model.model.m.q.lora_A.weight", "BF16", {3, kIn}, bf16_bytes(a)},
                 {"base_model.model.m.q.lora_B.weight", "F32", {kOut, 3}, f32_bytes(b)}});
  write_adapter("two",
                R"({"peft_type":"LORA","r":16,"lora_alpha":1,"use_rslora":true,
                    "rank_pattern":{"q":5},"alpha_pattern":{"m.q":7}})",
                {{"base_model.model.m.q.lora_A.default.weight", "F32", {5, kIn}, f32_bytes(a2)},
                 {"base_model.model.m.q.lora_B.default.weight", "F32", {kOut, 5}, f32_bytes(b2)}});
  std::vector<float> expected = w;
  add_naively(expected, a, b, 3, 2);
  add_naively(expected, a2, b2, 5, static_cast<float>(-0.5 * 7 / std::sqrt(5.0)));
  with_each_target([&](const char* target) {
    const auto checkpoint = load({adapter("one"), "-0.5@" + adapter("two")});
    EXPECT_EQ(bytes_of(*checkpoint, "m.q.weight"), bf16_bytes(expected)) << target;
    EXPECT_EQ(bytes_of(*checkpoint, "m.k.weight"), "xy");
    EXPECT_TRUE(checkpoint->locator(checkpoint->find("m.k.weight").value()));
  });
}

// Matching a single module is fast, but the total for all modules is limited.
TEST(AdapterConfigTest, LimitsWorkOfMatchingModules) {
  std::string patterns;
  for (int i = 0; i < 100; ++i) {
    patterns += (i == 0 ? "\"" : ",\"") + std::string(200, 'a') + "[" + std::to_string(i) + "]\":4";
  }
  const AdapterConfig config("c.json", R"({"peft_type":"LORA","rank_pattern":{)" + patterns + "}}");
  MatchingWork work = MatchingWork::for_tensors(100);
  const std::string module(1000, 'a');
  EXPECT_EQ(config.scaling_of(module, work).rank, 8U);
  try {
    for (int i = 0; i < 100; ++i) config.scaling_of(module, work);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "c.json: matching its patterns with the names of modules takes too long (Adapter)");
  }
}

// PEFT's EVA initialisation writes a key for each module.
TEST(AdapterConfigTest, PlainKeysTakeNoMatchingWork) {
  std::string patterns;
  for (int i = 0; i < 4'000; ++i) patterns += "\"layers." + std::to_string(i) + ".q\":4,";
  const AdapterConfig config("c.json", R"({"peft_type":"LORA","r":3,"rank_pattern":{)" + patterns +
                                           R"("v":5,"x.y":6,"q":7}})");
  MatchingWork work = MatchingWork::for_tensors(0);
  for (const auto& [module, rank] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"model.layers.3999.q", 4},
                                                          {"layers.0.q", 4},
                                                          {"model.layersx1xq", 4},
                                                          {"xlayers.1.q", 7},
                                                          {"q", 7},
                                                          {"layers.4000.q", 7},
                                                          {"v", 5},
                                                          {"a.v", 5},
                                                          {"av", 3},
                                                          {"a.xzy", 6},
                                                          {"a.x.y", 6},
                                                          {"xy", 3}}) {
    EXPECT_EQ(config.scaling_of(module, work).rank, rank) << module;
  }
  EXPECT_EQ(work.done, 0U);
  EXPECT_THROW(config.scaling_of("\u00e9.q", work), Error);
}

TEST_F(LoraTest, ReadsAnyByteRange) {
  constexpr std::uint64_t kOut = 9, kIn = 40;
  write_safetensors(dir_ / "base.safetensors",
                    {{"q.weight", "F16", {kOut, kIn}, std::string(kOut * kIn * 2, '\x31')}});
  write_adapter("one", kConfig,
                {{"q.lora_A.weight", "F32", {3, kIn}, f32_bytes(some(3 * kIn))},
                 {"q.lora_B.weight", "F32", {kOut, 3}, f32_bytes(some(kOut * 3))}});
  const auto checkpoint = load({adapter("one")});
  const std::string whole = bytes_of(*checkpoint, "q.weight");
  const Content content = checkpoint->tensor(0).content();
  for (std::size_t begin = 0; begin < whole.size(); begin += 7) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{83}, whole.size() - begin}) {
      std::string part(std::min(length, whole.size() - begin), '\0');
      ASSERT_EQ(content.copy(begin, std::as_writable_bytes(std::span(part))), 0);
      ASSERT_EQ(part, whole.substr(begin, part.size())) << begin << " " << length;
    }
  }
}

TEST_F(LoraTest, TransposesUpdateForEmbeddingsAndTransposedWeights) {
  constexpr std::uint64_t kOut = 6, kIn = 11;
  const std::vector<float> w = some(kIn * kOut), a = some(3 * kIn), b = some(kOut * 3);
  const std::vector<float> square = some(kIn * kIn), b2 = some(kIn * 3);
  write_safetensors(dir_ / "base.safetensors",
                    {{"embed.weight", "F32", {kIn, kOut}, f32_bytes(w)},
                     {"c.weight", "F32", {kIn, kOut}, f32_bytes(w)},
                     {"h.0.c_proj.weight", "F32", {kIn, kIn}, f32_bytes(square)}});
  write_file(dir_ / "config.json", R"({"model_type": "gpt2"})");
  write_adapter("one", kConfig,
                {{"embed.lora_embedding_A", "F32", {3, kIn}, f32_bytes(a)},
                 {"embed.lora_embedding_B", "F32", {kOut, 3}, f32_bytes(b)},
                 {"c.lora_A.weight", "F32", {3, kIn}, f32_bytes(a)},
                 {"c.lora_B.weight", "F32", {kOut, 3}, f32_bytes(b)},
                 {"h.0.c_proj.lora_A.weight", "F32", {3, kIn}, f32_bytes(a)},
                 {"h.0.c_proj.lora_B.weight", "F32", {kIn, 3}, f32_bytes(b2)}});
  const auto checkpoint = load({adapter("one")});
  std::vector<float> expected = transposed(w, kOut);
  add_naively(expected, a, b, 3, 2);
  EXPECT_EQ(bytes_of(*checkpoint, "embed.weight"), f32_bytes(transposed(expected, kIn)));
  EXPECT_EQ(bytes_of(*checkpoint, "c.weight"), f32_bytes(transposed(expected, kIn)));
  expected = transposed(square, kIn);
  add_naively(expected, a, b2, 3, 2);
  EXPECT_EQ(bytes_of(*checkpoint, "h.0.c_proj.weight"), f32_bytes(transposed(expected, kIn)));
}

TEST_F(LoraTest, MergesConvolutionAsMatrix) {
  const std::vector<float> w = some(4 * 2 * 3 * 3), a = some(3 * 2 * 3 * 3), b = some(4 * 3);
  write_safetensors(dir_ / "base.safetensors", {{"c.weight", "F32", {4, 2, 3, 3}, f32_bytes(w)}});
  write_adapter("one", kConfig,
                {{"c.lora_A.weight", "F32", {3, 2, 3, 3}, f32_bytes(a)},
                 {"c.lora_B.weight", "F32", {4, 3, 1, 1}, f32_bytes(b)}});
  std::vector<float> expected = w;
  add_naively(expected, a, b, 3, 2);
  EXPECT_EQ(bytes_of(*load({adapter("one")}), "c.weight"), f32_bytes(expected));
}

TEST_F(LoraTest, FullAdapterTensorsReplaceBaseTensors) {
  const std::vector<float> embed = some(5 * 2), a = some(3 * 5), b = some(2 * 3);
  write_safetensors(dir_ / "base.safetensors",
                    {{"model.embed.weight", "BF16", {4, 2}, std::string(16, 'x')},
                     {"score.weight", "F32", {2, 2}, std::string(16, 'x')}});
  write_adapter(
      "one", kConfig,
      {{"base_model.model.model.embed.base_layer.weight", "F32", {5, 2}, f32_bytes(embed)},
       {"base_model.model.model.embed.lora_embedding_A", "F32", {3, 5}, f32_bytes(a)},
       {"base_model.model.model.embed.lora_embedding_B", "F32", {2, 3}, f32_bytes(b)},
       {"base_model.model.score.weight", "F32", {3, 2}, std::string(24, 'y')}});
  const auto checkpoint = load({adapter("one")});
  std::vector<float> expected = transposed(embed, 2);
  add_naively(expected, a, b, 3, 2);
  EXPECT_EQ(bytes_of(*checkpoint, "model.embed.weight"), f32_bytes(transposed(expected, 5)));
  const stfs::Tensor score = checkpoint->tensor(checkpoint->find("score.weight").value());
  EXPECT_EQ(shape_json(score.shape), "[3,2]");
  EXPECT_EQ(bytes_of(*checkpoint, "score.weight"), std::string(24, 'y'));
  EXPECT_EQ(checkpoint->tensor_count(), 2U);
}

// PEFT's own forward() and merge() add the update of out_proj twice.
TEST_F(LoraTest, MergesMultiheadAttentionAsPeftTrainedIt) {
  const std::vector<float> in = some(6 * 2), out = some(2 * 2), a = some(3 * 2), b = some(6 * 3);
  const std::vector<float> a2 = some(3 * 2), b2 = some(2 * 3);
  write_safetensors(dir_ / "base.safetensors",
                    {{"m.in_proj_weight", "F32", {6, 2}, f32_bytes(in)},
                     {"m.out_proj.weight", "F32", {2, 2}, f32_bytes(out)}});
  write_adapter(
      "one", kConfig,
      {{"base_model.model.m.lora_A.weight", "F32", {3, 2}, f32_bytes(a)},
       {"base_model.model.m.lora_B.weight", "F32", {6, 3}, f32_bytes(b)},
       {"base_model.model.m.base_layer.out_proj.lora_A.weight", "F32", {3, 2}, f32_bytes(a2)},
       {"base_model.model.m.base_layer.out_proj.lora_B.weight", "F32", {2, 3}, f32_bytes(b2)}});
  const auto checkpoint = load({adapter("one")});
  std::vector<float> expected = in;
  add_naively(expected, a, b, 3, 2);
  EXPECT_EQ(bytes_of(*checkpoint, "m.in_proj_weight"), f32_bytes(expected));
  expected = out;
  add_naively(expected, a2, b2, 3, 2);
  add_naively(expected, a2, b2, 3, 2);
  EXPECT_EQ(bytes_of(*checkpoint, "m.out_proj.weight"), f32_bytes(expected));
}

TEST_F(LoraTest, MatchesNamesByLongestCommonSuffix) {
  const std::string four(16, 'x');
  write_safetensors(dir_ / "base.safetensors",
                    {{"language_model.model.layers.0.q.weight", "F32", {2, 2}, four},
                     {"vision.layers.1.q.weight", "F32", {2, 2}, four},
                     {"text.layers.1.q.weight", "F32", {2, 2}, four},
                     {"lm_head.weight", "F32", {2, 2}, four}});
  const auto checkpoint = load({});
  const Targets targets(checkpoint->list());
  std::optional<std::uint32_t> other;
  const auto found = [&](std::string_view name) {
    const auto number = targets.find(name, other);
    return number ? std::string(checkpoint->name(*number)) : "";
  };
  EXPECT_EQ(found("model.layers.0.q.weight"), "language_model.model.layers.0.q.weight");
  EXPECT_EQ(found("layers.0.q.weight"), "language_model.model.layers.0.q.weight");
  EXPECT_EQ(found("model.language_model.layers.0.q.weight"),
            "language_model.model.layers.0.q.weight");
  EXPECT_EQ(found("a.vision.layers.1.q.weight"), "vision.layers.1.q.weight");
  EXPECT_EQ(found("model.lm_head.weight"), "lm_head.weight");
  EXPECT_FALSE(other);
  EXPECT_EQ(found("layers.2.q.weight"), "");
  EXPECT_EQ(found("layers.0.k.weight"), "");
  for (const char* const tower : {"model.layers.1.q.weight", "decoder.layers.0.q.weight",
                                  "vision_tower.encoder.layers.0.q.weight", "audio.lm_head.bias"}) {
    EXPECT_EQ(found(tower), "") << "the name may belong to another tower";
  }
  EXPECT_NE(found("layers.1.q.weight"), "");
  EXPECT_TRUE(other);
}

TEST_F(LoraTest, RejectsUnsupportedConfigByKey) {
  const auto refused = [](const std::string& members) -> std::string {
    try {
      AdapterConfig("c.json", R"({"peft_type":"LORA","r":3)" + members + "}");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(R"(,"use_dora":false,"init_lora_weights":"gaussian","bias":"none",
                       "layer_replication":null,"target_parameters":[],"eva_config":{"rho":2})"),
            "");
  const std::map<std::string, const char*> kinds{{"alora_invocation_tokens", "[1, 2]"},
                                                 {"arrow_config", R"({"top_k": 3})"},
                                                 {"kasa_config", R"({"beta": 1})"},
                                                 {"layer_replication", "[[0, 2]]"},
                                                 {"lora_bias", "true"},
                                                 {"monteclora_config", R"({"num_samples": 8})"},
                                                 {"trainable_token_indices", "[1]"},
                                                 {"use_bdlora", R"({"nblocks": 2})"},
                                                 {"use_dora", "true"},
                                                 {"use_qalora", "true"},
                                                 {"velora_config", R"({"num_groups": 2})"}};
  for (const auto& [key, value] : kinds) {
    const std::string rule = refused(",\"" + key + "\":" + value);
    EXPECT_NE(
        rule.find("\"" + key + "\" is set: such an adapter is not supported, merge it with PEFT"),
        std::string::npos)
        << rule;
  }
  for (const char* const value :
       {"pissa", "pissa_niter_16", "olora", "PiSSA", "loftq", "corda", "lora_ga"}) {
    const std::string rule = refused(R"(,"init_lora_weights":")" + std::string(value) + "\"");
    EXPECT_NE(rule.find("\"" + std::string(value) + "\": it changed the weights of the base"),
              std::string::npos)
        << rule;
  }
  EXPECT_NE(refused(R"(,"init_lora_weights":"what")").find("\"what\": unknown value"),
            std::string::npos);
  for (const char* const value : {"all", "lora_only"}) {
    EXPECT_NE(refused(R"(,"bias":")" + std::string(value) + "\"")
                  .find("bias is \"" + std::string(value) + "\": only \"none\" is supported"),
              std::string::npos);
  }
  for (const char* const kept :
       {"true", "false", R"("gaussian")", R"("eva")", R"("orthogonal")", R"("mica")"}) {
    EXPECT_EQ(refused(R"(,"init_lora_weights":)" + std::string(kept)), "");
  }
  for (const char* const members :
       {R"(,"r":0)", R"(,"r":-1)", R"(,"r":1.5)", R"(,"lora_alpha":"8")", R"(,"use_rslora":1)",
        R"(,"rank_pattern":[])", R"(,"modules_to_save":"score")", R"(,"target_parameters":[1])",
        R"(,"rank_pattern":{"(?i)x":3})", R"(,"rank_pattern":{"x":"3"})"}) {
    EXPECT_NE(refused(members), "") << members;
  }
  std::string keys;
  for (int i = 0; i < 100'000; ++i) keys += ",\"x" + std::to_string(i) + "\":null";
  EXPECT_NE(refused(keys).find("more than 20000 keys"), std::string::npos);
  std::string names;
  for (int i = 0; i < 5'000; ++i) names += ",\"x" + std::to_string(i) + "\"";
  for (const std::string key : {"modules_to_save", "target_parameters"}) {
    EXPECT_NE(refused(",\"" + key + "\":[\"x\"" + names + "]").find("too many or too long names"),
              std::string::npos);
  }
  EXPECT_THROW(AdapterConfig("c.json", "[]"), Error);
  EXPECT_THROW(AdapterConfig("c.json", R"({"peft_type":"LOHA"})"), Error);
  EXPECT_THROW(AdapterConfig("c.json", "{"), Error);
  EXPECT_EQ(AdapterConfig("c", R"({"peft_type":"LORA","r":3,"newer":1})").warnings().size(), 1U);
  // All keys that PEFT 0.20 writes, with values that are not the default.
  EXPECT_EQ(AdapterConfig("c", R"({
    "alpha_pattern": {"q": 2}, "auto_mapping": {"parent_library": "x"}, "base_model_name_or_path": "x",
    "bias": "none", "ensure_weight_tying": true, "eva_config": {"rho": 2.0}, "exclude_modules": ["k"],
    "fan_in_fan_out": true, "inference_mode": true, "init_lora_weights": "eva", "layers_pattern": "layers",
    "layers_to_transform": [1], "lora_alpha": 2.5, "lora_dropout": 0.1, "megatron_config": {"x": 1},
    "megatron_core": "megatron.core", "modules_to_save": ["score"], "peft_type": "LORA",
    "peft_version": "0.20.0", "qalora_group_size": 16, "r": 3, "rank_pattern": {"q": 2}, "revision": "main",
    "runtime_config": {"ephemeral_gpu_offload": true}, "target_modules": "all-linear", "target_parameters": ["experts.down_proj"],
    "task_type": "CAUSAL_LM", "use_rslora": true})")
                .warnings(),
            std::vector<std::string>());
}

TEST_F(LoraTest, RejectsMisfittingAdapterWithReason) {
  write_safetensors(dir_ / "base.safetensors", {{"q.weight", "F32", {2, 4}, std::string(32, 'x')},
                                                {"i.weight", "I8", {2, 4}, std::string(8, 'x')}});
  const stfs::test::Tensor a{"q.lora_A.weight", "F32", {3, 4}, std::string(48, 'a')};
  const stfs::test::Tensor b{"q.lora_B.weight", "F32", {2, 3}, std::string(24, 'b')};
  const auto rule = [&](std::vector<stfs::test::Tensor> tensors) {
    write_adapter("one", kConfig, tensors);
    std::string text = refusal({adapter("one")});
    std::filesystem::remove_all(dir_ / "one");
    return text;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(rule({a, b}), "");
  EXPECT_TRUE(has(rule({a}), "the other factor is missing"));
  EXPECT_TRUE(has(rule({b}), "the other factor is missing"));
  EXPECT_TRUE(
      has(rule({a, {"q.lora_B.weight", "F32", {2, 4}, std::string(32, 'b')}}), "the rank is 3"));
  EXPECT_TRUE(
      has(rule({a, {"q.lora_B.weight", "F32", {5, 3}, std::string(60, 'b')}}), "does not fit"));
  EXPECT_TRUE(has(rule({a, {"q.lora_B.weight", "I32", {2, 3}, std::string(24, 'b')}}), "is I32"));
  EXPECT_TRUE(
      has(rule({a, b, {"q.lora_A.default.weight", "F32", {3, 4}, std::string(48, 'a')}}), "twice"));
  EXPECT_TRUE(has(rule({a, b, {"q.lora_magnitude_vector", "F32", {2}, std::string(8, 'm')}}),
                  "lora_magnitude_vector"));
  EXPECT_TRUE(has(rule({{"k.lora_A.weight", "F32", {3, 4}, std::string(48, 'a')},
                        {"k.lora_B.weight", "F32", {2, 3}, std::string(24, 'b')}}),
                  "the base has no tensor \"k.weight\""));
  EXPECT_TRUE(has(rule({{"i.lora_A.weight", "F32", {3, 4}, std::string(48, 'a')},
                        {"i.lora_B.weight", "F32", {2, 3}, std::string(24, 'b')}}),
                  "dequantize=bf16"));
  EXPECT_TRUE(has(rule({{"m.q.lora_A.weight", "F32", {3, 4}, std::string(48, 'a')},
                        {"m.q.lora_B.weight", "F32", {2, 3}, std::string(24, 'b')},
                        a,
                        b}),
                  "twice"));
}

TEST_F(LoraTest, ParsesScaleBeforeFirstAtSign) {
  EXPECT_EQ(adapter_choice("2@a").scale, 2);
  EXPECT_EQ(adapter_choice("-0.5@dir/x").directory, "dir/x");
  EXPECT_EQ(adapter_choice("hf://org/name@main").directory, "hf://org/name@main");
  EXPECT_EQ(adapter_choice("0.5@hf://org/name@main").directory, "hf://org/name@main");
  EXPECT_EQ(adapter_choice("@x").directory, "@x");
  EXPECT_EQ(adapter_choice("2x@a").directory, "2x@a");
  EXPECT_EQ(adapter_choice("inf@a").directory, "inf@a");
}

TEST_F(LoraTest, ChangedAdapterGivesESTALE) {
  write_safetensors(dir_ / "base.safetensors", {{"q.weight", "F32", {2, 4}, std::string(32, 'x')}});
  const std::vector<stfs::test::Tensor> tensors{
      {"q.lora_A.weight", "F32", {3, 4}, std::string(48, 'a')},
      {"q.lora_B.weight", "F32", {2, 3}, std::string(24, 'b')}};
  write_adapter("one", kConfig, tensors);
  const auto checkpoint = load({adapter("one")});
  const Content content = checkpoint->tensor(0).content();
  write_file(dir_ / "one" / "adapter_model.safetensors", "another");
  std::string bytes(32, '\0');
  EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(bytes))), ESTALE);
}

}  // namespace
}  // namespace stfs::test
