// stfs_bench_decoders: how fast the decoders of GGUF's types are, beside ggml's reference loops
// where STFS_GGML names a libggml-base.so. One thread; blocks and values in the second-level cache.
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

struct Ggml {
  const Traits* (*traits)(int type) = nullptr;
  Quantize* quantize = nullptr;
};

Ggml load() {
  Ggml ggml;
  const char* const path = std::getenv("STFS_GGML");
  void* const library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW);
  if (library == nullptr) return ggml;
  ggml.traits = reinterpret_cast<const Traits* (*)(int)>(::dlsym(library, "ggml_get_type_traits"));
  ggml.quantize = reinterpret_cast<Quantize*>(::dlsym(library, "ggml_quantize_chunk"));
  struct Params {
    std::size_t memory;
    void* buffer;
    bool no_alloc;
  };
  // Makes ggml's tables.
  reinterpret_cast<void* (*)(Params)>(::dlsym(library, "ggml_init"))({1 << 20, nullptr, true});
  return ggml;
}

constexpr std::size_t kElements = 16384;

// The best of many runs, millions of values a second.
template <class Decode>
double speed(const Decode& decode) {
  constexpr int kRepeats = 50;
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) decode();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return static_cast<double>(kElements) * kRepeats / best / 1e6;
}

// Quantised by ggml; where it has no quantiser, random bytes with scales that are finite.
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

void measure() {
  const Ggml ggml = load();
  std::printf("type      stfs   ggml  ratio   (millions of values a second)\n");
  for (int i = 0; i < kDTypeCount; ++i) {
    const TypeInfo& info = type_info(static_cast<DType>(i));
    if (info.kind != TypeKind::kQuantized) continue;
    const std::string blocks = blocks_of(info, ggml);
    const std::byte* const in = std::as_bytes(std::span(blocks)).data();
    std::vector<float> out(kElements);
    const double ours = speed([&] { info.to_f32(in, kElements, out.data()); });
    std::printf("%-8s %6.0f", std::string(info.name).c_str(), ours);
    auto* const to_float = ggml.traits == nullptr ? nullptr : ggml.traits(info.gguf)->to_float;
    if (to_float == nullptr) {
      std::printf("      -      -\n");
      continue;
    }
    const double theirs = speed([&] { to_float(in, out.data(), kElements); });
    std::printf(" %6.0f  %5.1f\n", theirs, ours / theirs);
  }
}

}  // namespace
}  // namespace stfs

int main() {
  stfs::measure();
  return 0;
}
