// What loading a checkpoint costs, beside what a parser needs merely to walk its header.
//
//   stfs_bench                         the file is named by the environment variable
//   STFS_BENCH_FILE
#include "core/checkpoint.h"
#include "core/mapping.h"

#include <benchmark/benchmark.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

namespace {

using nlohmann::json;

// Every event is taken and nothing is kept.
struct Walker {
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t) { return true; }
  bool number_unsigned(std::uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(std::size_t) { return true; }
  bool end_object() { return true; }
  bool start_array(std::size_t) { return true; }
  bool end_array() { return true; }
  bool key(std::string&) { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) { return false; }
};

std::string file_name(benchmark::State& state) {
  const char* name = std::getenv("STFS_BENCH_FILE");
  if (name == nullptr) {
    state.SkipWithError("STFS_BENCH_FILE names no file");
    return "";
  }
  return name;
}

// The limit: nlohmann's SAX parser over the header, which is in memory already.
void walk_header(benchmark::State& state) {
  const std::string name = file_name(state);
  if (name.empty()) return;
  const stfs::Mapping file(name);
  std::array<unsigned char, 8> prefix{};
  file.read(std::as_writable_bytes(std::span(prefix)), 0);
  std::uint64_t length = 0;
  for (std::size_t i = prefix.size(); i-- > 0;) length = length << 8 | prefix[i];
  std::string text(length, '\0');
  file.read(std::as_writable_bytes(std::span(text)), prefix.size());
  for (auto _ : state) {
    Walker walker;
    if (!json::sax_parse(text.begin(), text.end(), &walker)) state.SkipWithError("not JSON");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
}
BENCHMARK(walk_header)->Unit(benchmark::kMillisecond);

// Open, map, read, parse, validate, sort, and build the tree.
void load_checkpoint(benchmark::State& state) {
  const std::string name = file_name(state);
  if (name.empty()) return;
  std::uint32_t tensors = 0;
  for (auto _ : state) {
    const stfs::Checkpoint checkpoint(std::span(&name, 1));
    tensors = checkpoint.tensor_count();
  }
  state.counters["tensors"] = tensors;
}
BENCHMARK(load_checkpoint)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
