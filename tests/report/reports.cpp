#include "tests/report/reports.h"

#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

// Sets statistics of normally distributed values, and a histogram and a thumbnail if `is_pictured`.
void give_values(ReportTensor& tensor, double mean, double std, std::mt19937& random,
                 bool is_pictured) {
  ValueStats stats;
  stats.count = tensor.elements;
  const double reach = std * (4.5 + static_cast<double>(random() % 1000) / 400);
  stats.min = mean - reach;
  stats.max = mean + reach * 0.9;
  stats.mean = mean;
  stats.std = std;
  stats.zeros = tensor.elements / (1000 + random() % 4000);
  tensor.stats = stats;
  if (!is_pictured) return;
  Histogram histogram;
  histogram.low = mean - 6 * std;
  histogram.high = mean + 6 * std;
  for (std::size_t bin = 0; bin < Histogram::kBins; ++bin) {
    const double x = (static_cast<double>(bin) + 0.5 - Histogram::kBins / 2.0) / 10.67;
    const double density = std::exp(-x * x / 2) * 0.0374;
    histogram.counts[bin] =
        static_cast<std::uint64_t>(density * static_cast<double>(tensor.elements));
  }
  histogram.above = 3;
  tensor.histogram = histogram;
  constexpr std::array kNormal = {-3.09, -2.33, -0.674, 0.0, 0.674, 2.33, 3.09};
  std::array<double, kQuantiles.size()> quantiles{};
  for (std::size_t i = 0; i < kQuantiles.size(); ++i) quantiles[i] = mean + std * kNormal[i];
  tensor.quantiles = quantiles;
  Thumbnail thumbnail;
  thumbnail.width = 48;
  thumbnail.height = tensor.shape.size() == 1 ? 32 : 48;
  thumbnail.shows = Thumbnail::Shows::kStrength;
  thumbnail.middle = std;
  thumbnail.limit = 1.4;
  // Draws heads, and two columns with larger values.
  std::normal_distribution<float> noise(0, 0.03F);
  const std::size_t column = random() % 40;
  for (std::size_t i = 0; i < thumbnail.width * thumbnail.height; ++i) {
    const std::size_t x = i % thumbnail.width;
    const std::size_t head = i / thumbnail.width / 6;
    const float strength = noise(random) + 0.04F * static_cast<float>(head * 5 % 7) - 0.12F +
                           (x - column < 2 ? 0.3F : 0);
    thumbnail.pixels.push_back(picture_color(strength, std::log(thumbnail.limit)));
  }
  tensor.thumbnail = thumbnail;
}

ReportTensor tensor_of(std::string name, std::vector<std::uint64_t> shape, std::uint32_t file) {
  ReportTensor tensor;
  tensor.name = std::move(name);
  tensor.path = tensor.name;
  tensor.type = shape.size() == 1 ? "F32" : "BF16";
  tensor.shape = std::move(shape);
  tensor.elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::uint64_t{1},
                                    std::multiplies<>());
  tensor.bytes = tensor.elements * (tensor.shape.size() == 1 ? 4 : 2);
  tensor.file = file;
  return tensor;
}

void add_totals(Report& report) {
  for (const ReportTensor& tensor : report.tensors) {
    report.parameters += tensor.elements;
    report.bytes += tensor.bytes;
    report.files.at(tensor.file).bytes += tensor.bytes;
  }
}

std::uint32_t position(const Report& report, std::string_view name) {
  const auto found = std::ranges::find(report.tensors, name, &ReportTensor::name);
  return static_cast<std::uint32_t>(found - report.tensors.begin());
}

}  // namespace

Report model_report(std::uint32_t layers) {
  Report report;
  report.title = "example-7b";
  report.sources = {"/models/example-7b"};
  report.format = "safetensors";
  report.facts = {{"Architecture", "ExampleForCausalLM"},
                  {"Layers", std::to_string(layers)},
                  {"Width", "4,096"},
                  {"Heads", "32"},
                  {"Heads of keys", "8"},
                  {"Context", "131,072"},
                  {"Vocabulary", "32,000"}};
  report.metadata = {{"format", "pt"}, {"license", "apache-2.0"}};
  report.files = {{"model-00001-of-00002.safetensors", 0}, {"model-00002-of-00002.safetensors", 0}};
  std::mt19937 random(7);
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape,
                       double mean, double std, std::uint32_t file) {
    report.tensors.push_back(tensor_of(name, shape, file));
    give_values(report.tensors.back(), mean, std, random, true);
  };
  add("lm_head.weight", {32000, 4096}, 0, 0.017, 1);
  add("model.embed_tokens.weight", {32000, 4096}, 0, 0.0021, 0);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const std::string place = "model.layers." + std::to_string(layer) + ".";
    const double depth = 1 + 0.02 * layer;
    const std::uint32_t file = layer < 16 ? 0 : 1;
    add(place + "input_layernorm.weight", {4096}, 0.4 * depth, 0.06, file);
    add(place + "mlp.down_proj.weight", {4096, 14336}, 0, 0.0031 * depth, file);
    add(place + "mlp.gate_proj.weight", {14336, 4096}, 0, 0.0036 * depth, file);
    add(place + "mlp.up_proj.weight", {14336, 4096}, 0, 0.0034 * depth, file);
    add(place + "post_attention_layernorm.weight", {4096}, 0.5 * depth, 0.04, file);
    add(place + "self_attn.k_proj.weight", {1024, 4096}, 0, layer == 21 ? 0.034 : 0.0081, file);
    add(place + "self_attn.o_proj.weight", {4096, 4096}, 0, 0.0029 * depth, file);
    add(place + "self_attn.q_proj.weight", {4096, 4096}, 0, 0.0062 / depth, file);
    add(place + "self_attn.v_proj.weight", {1024, 4096}, 0, 0.0025 * depth, file);
  }
  add("model.norm.weight", {4096}, 4.1, 0.3, 1);
  add_totals(report);

  const std::uint32_t nan = position(report, "model.layers.9.mlp.up_proj.weight");
  report.tensors[nan].stats->nan = 12;
  report.tensors[nan].stats->nan_at = {4096 * 5 + 3, 4096 * 7};
  report.tensors[nan].stats->largest_at = 4096 * 9 + 1;
  report.look = CommandSource{"model.safetensors"};
  report.findings.push_back({Finding::Kind::kNan,
                             "NaN in 1 tensor: " + in_quotes(report.tensors[nan].name) +
                                 " (12 of 58,720,256 values, the first at [5,3])",
                             {nan}});
  report.tensors[nan].thumbnail->pixels[700] = picture_color(std::nanf(""), 1);
  Finding zero{Finding::Kind::kAllZero, "only zeros in 3 tensors: ", {}};
  for (const char* const role : {"down_proj", "gate_proj", "up_proj"}) {
    const std::uint32_t at =
        position(report, "model.layers.30.mlp." + std::string(role) + ".weight");
    ReportTensor& tensor = report.tensors[at];
    tensor.stats = ValueStats{tensor.elements, 0.0, 0.0, 0.0, 0.0, tensor.elements, 0, 0};
    tensor.histogram = Histogram{};
    tensor.histogram->low = -0.5;
    tensor.histogram->high = 0.5;
    tensor.histogram->counts[64] = tensor.elements;
    tensor.quantiles->fill(0);
    std::ranges::fill(tensor.thumbnail->pixels, picture_color(0, 0));
    zero.text += (zero.tensors.empty() ? "" : ", ") + in_quotes(tensor.name);
    zero.tensors.push_back(at);
  }
  report.findings.push_back(zero);
  const std::uint32_t first = position(report, "model.layers.4.self_attn.q_proj.weight");
  const std::uint32_t second = position(report, "model.layers.5.self_attn.q_proj.weight");
  report.tensors[second].equal_to = first;
  report.findings.push_back(
      {Finding::Kind::kEqual,
       "2 tensors with equal bytes (32.0 MiB each): " + in_quotes(report.tensors[first].name) +
           " and " + in_quotes(report.tensors[second].name),
       {first, second},
       Finding::Severity::kOdd});
  const std::uint32_t far = position(report, "model.layers.21.self_attn.k_proj.weight");
  report.findings.push_back(
      {Finding::Kind::kOutlier,
       "RMS 4.2 times that of its kind in " + in_quotes(report.tensors[far].name),
       {far},
       Finding::Severity::kOdd});
  report.findings.push_back({Finding::Kind::kConstant,
                             "ones in 1 tensor: " + in_quotes("model.norm.weight"),
                             {position(report, "model.norm.weight")},
                             Finding::Severity::kUsual});
  return report;
}

Report large_report(std::size_t count) {
  Report report;
  report.title = "Mixture-of-many";
  report.sources = {"hf://example/mixture-of-many"};
  report.format = "safetensors";
  std::mt19937 random(11);
  constexpr std::array kRoles = {"gate_proj", "up_proj", "down_proj"};
  constexpr std::size_t kExperts = 512;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t layer = i / (kExperts * kRoles.size());
    const std::size_t expert = i / kRoles.size() % kExperts;
    while (report.files.size() <= layer) {
      report.files.push_back(
          {"model-" + std::to_string(report.files.size() + 1) + ".safetensors", 0});
    }
    report.tensors.push_back(tensor_of("model.layers." + std::to_string(layer) + ".mlp.experts." +
                                           std::to_string(expert) + "." +
                                           kRoles[i % kRoles.size()] + ".weight",
                                       {2048, 1408}, static_cast<std::uint32_t>(layer)));
    give_values(report.tensors.back(), 0.00001 * static_cast<double>(random() % 100),
                0.02 + 0.0001 * static_cast<double>(layer + random() % 40), random, false);
  }
  add_totals(report);
  return report;
}

Report compared_report() {
  Report report = model_report();
  report.against = "/models/base";
  std::mt19937 random(5);
  for (std::size_t i = 0; i < report.tensors.size(); ++i) {
    ReportTensor& tensor = report.tensors[i];
    Difference difference;
    if (tensor.shape.size() == 2) {
      difference.kind = Difference::Kind::kValues;
      difference.distance = 0.002 * (1 + static_cast<double>(i) / 30) *
                            (0.5 + static_cast<double>(random() % 100) / 100);
      difference.equal = 0.1 + static_cast<double>(random() % 800) / 1000;
      difference.largest = 0.01;
      tensor.histogram_before = *tensor.histogram;
      auto& counts = tensor.histogram_before->counts;
      std::rotate(counts.begin(), counts.begin() + 6, counts.end());
    } else {
      difference.distance = 0;
      difference.equal = 1;
      difference.largest = 0;
    }
    tensor.difference = difference;
  }
  const auto change = [&](std::string_view name, Difference difference) {
    report.tensors[position(report, name)].difference = std::move(difference);
  };
  change("lm_head.weight", {Difference::Kind::kAdded, "", {}, {}, {}});
  change("model.embed_tokens.weight", {Difference::Kind::kShape, "BF16 [32064, 4096]", {}, {}, {}});
  change("model.layers.3.mlp.up_proj.weight", {Difference::Kind::kValues, "", 1e-9, 0.99999, 1e-9});
  change("model.norm.weight", {Difference::Kind::kType, "BF16", 0.001, 0.7, 0.02});
  report.removed.push_back({"model.rotary.inv_freq", "F32", {64}, 256});
  return report;
}

Report hostile_report() {
  Report report;
  report.title = "</title><script>document.title='broken'</script>";
  report.sources = {"\"><img src=x onerror=alert(1)>", "\xff\xfe"};
  report.format = "safetensors";
  report.metadata = {{"</dl><script>window.broken=1</script>", "<!--<script>\n{{script}}"},
                     {std::string(3000, 'k'), std::string(5000, 'v')}};
  report.files = {{"<b>file</b>", 10}, {"two\nlines", 20}};
  const std::vector<std::string> names = {
      "",
      ".",
      "..a..b..",
      "</script><script>window.broken=1</script>",
      "</noscript><script>window.broken=1</script>",
      "<!-- <script>",
      "]]>",
      "&lt;b&gt;&amp;amp;",
      "quote\"'`quote",
      "line\nfeed\r\ttab<td>cell",
      "right\u202eto\u2066left\u200f\u05d0\u05d1",
      "bytes\xff\xc0\xaf.\xed\xa0\x80",
      std::string("nul\0nul", 7),
      "{{script}}{{data}}",
      "__proto__.constructor.toString",
      "constructor",
      "__proto__",
      "hasOwnProperty.1.__proto__.2",
      "javascript:alert(1)",
      "a.99999999999999999999999999.b",
      "experts.-1.experts.1e9.0x10.experts.7.w",
      std::string(100000, 'n'),
      "deep" +
          [] {
            std::string deep;
            for (int i = 0; i < 150; ++i) deep += ".d";
            return deep;
          }(),
  };
  for (const std::string& name : names) {
    report.tensors.push_back(tensor_of(name, {3, 5}, 1));
    report.tensors.back().type = "<i>F32";
    report.tensors.back().quantised = "<u>quantised";
    report.tensors.back().failure = "<s>failed\n</s>";
  }
  ReportTensor& odd = report.tensors.back();
  odd.shape = std::vector<std::uint64_t>(64, 1);
  odd.stats = ValueStats{15, -1e308, 1e308, 0.0, 1e308, 0, 3, 4};
  odd.histogram = Histogram{};
  odd.histogram->low = -1e308;
  odd.histogram->high = 1e308;
  odd.thumbnail = Thumbnail{2, 2, {0, 253, 254, 255}};
  ReportTensor& large = report.tensors.front();
  large.shape = {0xFFFFFFFFFFFFFFFF};
  large.elements = 0xFFFFFFFFFFFFFFFF;
  large.bytes = 0xFFFFFFFFFFFFFFFF;
  large.stats = ValueStats{0, {}, {}, {}, {}, 0, 0, 0};
  report.parameters = 0xFFFFFFFFFFFFFFFF;
  report.bytes = 0xFFFFFFFFFFFFFFFF;
  for (std::uint32_t i = 0; i < report.tensors.size(); ++i) {
    report.findings.push_back(
        {Finding::Kind::kConstant, in_quotes(report.tensors[i].name) + " is odd", {i}});
  }
  report.findings.push_back({Finding::Kind::kMissing, "<h1>missing</h1>", {}});
  return report;
}

Run example_run() {
  Run run;
  for (int version = 1; version <= 10; ++version) {
    run.versions.push_back("step-" + std::to_string(1000 * version));
  }
  std::mt19937 random(19);
  for (const ReportTensor& tensor : model_report().tensors) {
    if (tensor.stats->zeros == tensor.elements) continue;
    RunTensor& row = run.tensors.emplace_back();
    row.name = tensor.name;
    row.elements = tensor.elements;
    row.bytes = tensor.bytes;
    const auto speed = static_cast<float>(0.01 + 0.0002 * static_cast<double>(random() % 100));
    const bool breaks = tensor.stats->nan > 0;
    for (int version = 0; version < 10; ++version) {
      RunCell& cell = row.cells.emplace_back();
      const auto steps = static_cast<float>(version);
      cell.state = RunCell::State::kThere;
      cell.distance = speed * std::sqrt(steps);
      cell.rms = static_cast<float>(std::hypot(*tensor.stats->mean, *tensor.stats->std)) *
                 (1 + speed * steps / 5);
      cell.largest = static_cast<float>(*tensor.stats->max) * (1 + speed * steps);
      if (breaks && version >= 7) {
        cell.not_finite = std::uint64_t{12} << version;
        cell.distance = std::nanf("");
      }
    }
  }
  return run;
}

Report small_report() {
  Report report;
  report.title = "small";
  report.format = "safetensors";
  report.files = {{"small.safetensors", 0}};
  std::mt19937 random(3);
  for (const char* const name : {"a", "b"}) {
    report.tensors.push_back(tensor_of(name, {30, 40}, 0));
    give_values(report.tensors.back(), 0, 0.02, random, true);
  }
  add_totals(report);
  return report;
}

Report empty_report() {
  Report report;
  report.title = "empty";
  report.format = "safetensors";
  report.files = {{"empty.safetensors", 8}};
  return report;
}

}  // namespace stfs::test
