// make_checkpoint DIR --preset tiny|7b|70b|moe|wide [--shards N] [--scale F] [--tensors N]
//                 [--seed S]
//
// Writes a checkpoint with names and shapes of real models and random bytes. It streams the
// tensors, so its memory stays small at any size.
//
//   tiny  one file, ten tensors of many types, less than 1 MiB
//   7b    a Llama decoder of 7 billion parameters (13 GB at --scale 1)
//   70b   a Llama 3 decoder of 70 billion parameters (140 GB at --scale 1)
//   moe   a mixture of experts: 100,000 small tensors with long names
//   wide  760,000 tiny tensors in one file with a header just below the format's limit of
//         100,000,000 bytes
#include "tests/support/checkpoint_writer.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

struct Plan {
  std::string name;
  std::string dtype;
  Shape shape;
};

std::uint64_t length_of(const Plan& plan) { return byte_size(plan.dtype, plan.shape); }

struct Llama {
  std::uint64_t hidden, intermediate, kv, vocabulary, layers;
};

constexpr Llama kLlama7b = {4096, 11008, 4096, 32000, 32};
constexpr Llama kLlama70b = {8192, 28672, 1024, 128256, 80};
// The format's limit for the JSON of a header, in bytes.
constexpr std::uint64_t kMaxHeader = 100'000'000;

std::vector<Plan> plan_tiny() {
  return {{"embed.weight", "BF16", {256, 64}},
          {"layer.0.weight", "F16", {64, 64}},
          {"layer.0.bias", "F32", {64}},
          {"layer.1.weight", "F8_E4M3", {64, 64}},
          {"layer.1.scale", "F64", {}},
          {"layer.2.weight", "F4", {64, 64}},
          {"layer.2.scales", "F8_E8M0", {64, 2}},
          {"head/weight", "BF16", {64, 256}},
          {"position_ids", "I64", {1, 128}},
          {"mask", "BOOL", {16, 16}},
          {"unused", "U8", {0}}};
}

std::vector<Plan> plan_llama(const Llama& full, double scale) {
  const auto scaled = [scale](std::uint64_t size) {
    const auto eighths = std::llround(static_cast<double>(size) * scale / 8);
    return static_cast<std::uint64_t>(std::max<long long>(1, eighths)) * 8;
  };
  const std::uint64_t hidden = scaled(full.hidden);
  const std::uint64_t intermediate = scaled(full.intermediate);
  const std::uint64_t kv = scaled(full.kv);
  const std::uint64_t vocabulary = scaled(full.vocabulary);
  std::vector<Plan> plans;
  const auto add = [&plans](std::string name, Shape shape) {
    plans.push_back({std::move(name), "BF16", std::move(shape)});
  };
  add("model.embed_tokens.weight", {vocabulary, hidden});
  for (std::uint64_t layer = 0; layer < full.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {hidden});
    add(prefix + "mlp.down_proj.weight", {hidden, intermediate});
    add(prefix + "mlp.gate_proj.weight", {intermediate, hidden});
    add(prefix + "mlp.up_proj.weight", {intermediate, hidden});
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add(prefix + "self_attn.k_proj.weight", {kv, hidden});
    add(prefix + "self_attn.o_proj.weight", {hidden, hidden});
    add(prefix + "self_attn.q_proj.weight", {hidden, hidden});
    add(prefix + "self_attn.v_proj.weight", {kv, hidden});
  }
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {vocabulary, hidden});
  return plans;
}

std::vector<Plan> plan_moe(std::uint64_t tensors) {
  constexpr std::uint64_t kExperts = 256;
  constexpr const char* kParts[] = {"gate_proj", "up_proj", "down_proj"};
  std::vector<Plan> plans;
  plans.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors; ++i) {
    plans.push_back({"language_model.model.layers." + std::to_string(i / 3 / kExperts) +
                         ".block_sparse_moe.experts." + std::to_string(i / 3 % kExperts) + "." +
                         kParts[i % 3] + ".weight",
                     "BF16",
                     {32, 16}});
  }
  return plans;
}

// Names have about 100 bytes, or fewer if the limit of the header requires it.
std::vector<Plan> plan_wide(std::uint64_t tensors) {
  const std::string longest = R"("":{"dtype":"U8","shape":[1],"data_offsets":[,]},)";
  const std::uint64_t fixed = longest.size() + 2 * std::to_string(tensors).size();
  const std::uint64_t room = (kMaxHeader - 16) / std::max<std::uint64_t>(tensors, 1);
  const std::uint64_t length = std::clamp<std::uint64_t>(room > fixed ? room - fixed : 0, 24, 100);
  std::vector<Plan> plans;
  plans.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors; ++i) {
    std::string name = "model.layers." + std::to_string(i % 61) + ".experts." + std::to_string(i);
    if (name.size() < length) {
      static const std::string kTail =
          ".mlp.shared_block.quantised_projection.weight_scale_inverse";
      std::string tail = kTail;
      while (tail.size() < length) tail += kTail;
      name += tail.substr(0, length - name.size());
    }
    plans.push_back({std::move(name), "U8", {1}});
  }
  return plans;
}

// Writes one file with bytes from `random`.
void write_shard(const std::filesystem::path& path, std::span<const Plan> plans,
                 const std::optional<Metadata>& metadata, RandomBytes& random) {
  HeaderBuilder builder(metadata);
  for (const Plan& plan : plans) builder.add(plan.name, plan.dtype, plan.shape, length_of(plan));
  std::ofstream out;
  out.exceptions(std::ios::failbit | std::ios::badbit);
  out.open(path, std::ios::binary | std::ios::trunc);
  const std::string header = safetensors_bytes(builder.finish(), "");
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  std::string block(4 << 20, '\0');
  for (const Plan& plan : plans) {
    for (std::uint64_t left = length_of(plan); left > 0;) {
      const std::span<char> part(block.data(), std::min<std::uint64_t>(left, block.size()));
      random.fill(part);
      if (plan.dtype == "BOOL")
        for (char& byte : part) byte = static_cast<char>(byte & 1);
      out.write(part.data(), static_cast<std::streamsize>(part.size()));
      left -= part.size();
    }
  }
  out.close();
}

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

// Splits the tensors, in order, into at most `shards` files of about equal size.
std::vector<std::span<const Plan>> split(std::span<const Plan> plans, std::size_t shards) {
  std::uint64_t total = 0;
  for (const Plan& plan : plans) total += length_of(plan);
  std::vector<std::span<const Plan>> parts;
  std::size_t begin = 0;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    done += length_of(plans[i]);
    const bool full = done >= total / shards * (parts.size() + 1) && parts.size() + 1 < shards;
    if (full || i + 1 == plans.size()) {
      parts.push_back(plans.subspan(begin, i + 1 - begin));
      begin = i + 1;
    }
  }
  return parts;
}

void write_checkpoint(const std::filesystem::path& directory, std::span<const Plan> plans,
                      std::size_t shards, const std::optional<Metadata>& metadata,
                      std::uint64_t seed) {
  std::filesystem::create_directories(directory);
  RandomBytes random(seed);
  if (shards <= 1) {
    write_shard(directory / "model.safetensors", plans, metadata, random);
    return;
  }
  const auto parts = split(plans, shards);
  std::map<std::string, std::string> map;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = shard_name(i + 1, parts.size());
    write_shard(directory / name, parts[i], metadata, random);
    for (const Plan& plan : parts[i]) {
      map.emplace(plan.name, name);
      total += length_of(plan);
    }
  }
  write_index(directory / "model.safetensors.index.json", map, total);
}

int run(int argc, char** argv) {
  CLI::App app("Write a safetensors checkpoint with random bytes");
  std::string directory;
  std::string preset;
  std::size_t shards = 0;
  double scale = 1;
  std::uint64_t tensors = 0;
  std::uint64_t seed = 1;
  app.add_option("DIR", directory, "where to write; created")->required();
  app.add_option("--preset", preset, "which model")
      ->required()
      ->check(CLI::IsMember({"tiny", "7b", "70b", "moe", "wide"}));
  app.add_option("--shards", shards, "files (default: tiny and wide 1, 7b 3, moe 8, 70b 30)");
  app.add_option("--scale", scale, "factor on the sizes of 7b and 70b")
      ->check(CLI::Range(1e-6, 10.0));
  app.add_option("--tensors", tensors, "tensors of moe (100000) and wide (760000)");
  app.add_option("--seed", seed, "of the random bytes");
  CLI11_PARSE(app, argc, argv);

  std::vector<Plan> plans;
  std::size_t default_shards = 1;
  Metadata metadata = {{"format", "pt"}};
  if (preset == "tiny") {
    plans = plan_tiny();
    metadata = {{"format", "pt"}, {"model", "tiny"}, {"licence", "Apache-2.0"}};
  } else if (preset == "7b") {
    plans = plan_llama(kLlama7b, scale);
    default_shards = 3;
  } else if (preset == "70b") {
    plans = plan_llama(kLlama70b, scale);
    default_shards = 30;
  } else if (preset == "moe") {
    plans = plan_moe(tensors != 0 ? tensors : 100'000);
    default_shards = 8;
  } else {
    plans = plan_wide(tensors != 0 ? tensors : 760'000);
  }
  write_checkpoint(directory, plans, shards != 0 ? shards : default_shards, metadata, seed);
  return 0;
}

}  // namespace
}  // namespace stfs::test

int main(int argc, char** argv) {
  try {
    return stfs::test::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_checkpoint: %s\n", error.what());
    return 1;
  }
}
