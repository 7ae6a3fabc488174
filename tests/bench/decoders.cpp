// stfs_bench_decoders: measures the decoders of GGUF's types, and compares them with the reference
// loops of ggml if STFS_GGML names a libggml-base.so. Uses one thread, with blocks and values in
// the second-level cache.
//
//   stfs_bench_decoders [--rounds N] [--vectors]
//
// Each round measures stfs and ggml in turn. A row has the best speed of each, their ratio, and the
// lowest and highest ratio of a round. --vectors prints a row for each instruction set.
#include "core/base/vectors.h"
#include "core/format/from_f32.h"
#include "core/format/types.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {
namespace {

// The beginning of ggml_type_traits (ggml.h).
struct Traits {
  const char* name;
  std::int64_t block_elements, interleave;
  std::size_t block_bytes;
  bool is_quantized;
  void (*to_float)(const void*, float*, std::int64_t);
};
using Quantize = std::size_t(int type, const float* from, void* to, std::int64_t start,
                             std::int64_t rows, std::int64_t row_elements, const float* weights);

using ToHalf = void(const float* from, void* to, std::int64_t count);

struct Ggml {
  const Traits* (*traits)(int type) = nullptr;
  Quantize* quantize = nullptr;
  ToHalf* to_f16 = nullptr;
  ToHalf* to_bf16 = nullptr;
};

Ggml load() {
  Ggml ggml;
  const char* const path = std::getenv("STFS_GGML");
  void* const library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW);
  if (library == nullptr) return ggml;
  ggml.traits = reinterpret_cast<const Traits* (*)(int)>(::dlsym(library, "ggml_get_type_traits"));
  ggml.quantize = reinterpret_cast<Quantize*>(::dlsym(library, "ggml_quantize_chunk"));
  ggml.to_f16 = reinterpret_cast<ToHalf*>(::dlsym(library, "ggml_fp32_to_fp16_row"));
  ggml.to_bf16 = reinterpret_cast<ToHalf*>(::dlsym(library, "ggml_fp32_to_bf16_row_ref"));
  struct Params {
    std::size_t memory;
    void* buffer;
    bool no_alloc;
  };
  // Initialises the tables of ggml.
  reinterpret_cast<void* (*)(Params)>(::dlsym(library, "ggml_init"))({1 << 20, nullptr, true});
  return ggml;
}

constexpr std::size_t kElements = 16384;

// Returns millions of values per second.
template <class Decode>
double speed(const Decode& decode) {
  constexpr int kRepeats = 50;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRepeats; ++i) decode();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kElements) * kRepeats / took.count() / 1e6;
}

// Takes the fastest of several runs in each round, because it is the least disturbed run.
template <class Ours, class Theirs>
void measure(const std::string& name, int rounds, const Ours& ours, const Theirs& theirs,
             bool has_peer) {
  constexpr int kRuns = 8;
  double best_ours = 0;
  double best_theirs = 0;
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    double a = 0;
    double b = 0;
    for (int run = 0; run < kRuns; ++run) {
      a = std::max(a, speed(ours));
      if (has_peer) b = std::max(b, speed(theirs));
    }
    best_ours = std::max(best_ours, a);
    best_theirs = std::max(best_theirs, b);
    ratios.push_back(a / b);
  }
  if (!has_peer) {
    std::printf("%-14s %6.0f      -\n", name.c_str(), best_ours);
    return;
  }
  std::ranges::sort(ratios);
  std::printf("%-14s %6.0f %6.0f %6.2f %6.2f %6.2f\n", name.c_str(), best_ours, best_theirs,
              best_ours / best_theirs, ratios.front(), ratios.back());
  std::fflush(stdout);
}

// Returns blocks quantised by ggml, or random bytes with finite scales if ggml has no quantiser.
std::string blocks_of(const TypeInfo& info, const Ggml& ggml) {
  std::mt19937 random(1);
  std::string blocks(*info.bytes_of(kElements), '\0');
  for (char& c : blocks) c = static_cast<char>(random() & 0x3F);
  const bool has_none = info.name == "Q8_1" || info.name == "Q8_K";
  if (ggml.quantize == nullptr || has_none) return blocks;
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(random);
  const std::vector<float> weights(kElements, 1);
  ggml.quantize(info.gguf, values.data(), blocks.data(), 0, 1, kElements, weights.data());
  return blocks;
}

void measure_all(int rounds, bool all_vectors) {
  const Ggml ggml = load();
  std::printf(
      "type             stfs   ggml  ratio  least greatest   (millions of values a second)\n");
  for (int i = 0; i < kDTypeCount; ++i) {
    const TypeInfo& info = type_info(static_cast<DType>(i));
    const bool is_float16 = info.name == "F16" || info.name == "BF16";
    if (info.kind != TypeKind::kQuantized && !is_float16) continue;
    const std::string blocks = blocks_of(info, ggml);
    const std::byte* const in = std::as_bytes(std::span(blocks)).data();
    std::vector<float> out(kElements);
    auto* const to_float = ggml.traits == nullptr ? nullptr : ggml.traits(info.gguf)->to_float;
    const auto theirs = [&] { to_float(in, out.data(), kElements); };
    const auto measure_as = [&](const std::string& name) {
      measure(
          name, rounds, [&] { info.to_f32(in, kElements, out.data()); }, theirs,
          to_float != nullptr);
    };
    measure_as(std::string(info.name));
    if (!all_vectors) continue;
    with_each_target(
        [&](const char* vectors) { measure_as(std::string(info.name) + "/" + vectors); });
  }
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i) * 0.001F - 8;
  std::vector<std::byte> out(2 * kElements);
  const auto rounding = [&](const char* name, FromF32* ours, ToHalf* theirs) {
    measure(
        name, rounds, [&] { ours(values.data(), kElements, out.data()); },
        [&] { theirs(values.data(), out.data(), kElements); }, theirs != nullptr);
  };
  rounding("F32-to-F16", f32_to_f16, ggml.to_f16);
  rounding("F32-to-BF16", f32_to_bf16, ggml.to_bf16);
}

}  // namespace
}  // namespace stfs

int main(int argc, char** argv) {
  int rounds = 5;
  bool all_vectors = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--vectors") {
      all_vectors = true;
    } else if (word == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: stfs_bench_decoders [--rounds N] [--vectors]\n");
      return 2;
    }
  }
  stfs::measure_all(rounds, all_vectors);
  return 0;
}
