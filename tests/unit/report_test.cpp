// Tests of the data of a report: the findings for checkpoints with known faults, and that threads
// do not change the result.
#include "core/base/vectors.h"
#include "core/checkpoint/catalogue.h"
#include "core/report/collect.h"
#include "core/report/findings.h"
#include "core/report/page.h"
#include "core/values/difference.h"
#include "core/values/distribution.h"
#include "core/values/moments.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using Kind = Finding::Kind;
using Severity = Finding::Severity;
using std::string_literals::operator""s;

// Returns values like weights, most of them near zero.
std::vector<float> some_weights(std::uint64_t count, std::uint64_t seed) {
  RandomBytes random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(random.next() % 20'001) / 1e4 - 1;
    value = static_cast<float>(sum * 0.02);
  }
  return values;
}

std::uint64_t product(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t dim : shape) count *= dim;
  return count;
}

Tensor bf16(const std::string& name, const Shape& shape, const std::vector<float>& values) {
  Tensor tensor{name, "BF16", shape, {}};
  for (const float value : values) {
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    tensor.bytes += static_cast<char>(bits & 0xFF);
    tensor.bytes += static_cast<char>(bits >> 8);
  }
  return tensor;
}
Tensor bf16(const std::string& name, const Shape& shape, std::uint64_t seed) {
  return bf16(name, shape, some_weights(product(shape), seed));
}
Tensor f32(const std::string& name, const std::vector<float>& values) {
  Tensor tensor{name, "F32", {values.size()}, std::string(values.size() * sizeof(float), '\0')};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

Tensor f64(const std::string& name, double value) {
  Tensor tensor{name, "F64", {1}, std::string(sizeof(double), '\0')};
  std::memcpy(tensor.bytes.data(), &value, tensor.bytes.size());
  return tensor;
}

// Returns the tensors of a 7B model with each dimension about a hundred times smaller.
std::vector<Tensor> model() {
  constexpr std::uint64_t kWidth = 40, kInner = 108, kWords = 320;
  std::vector<Tensor> tensors{bf16("model.embed_tokens.weight", {kWords, kWidth}, 1)};
  std::uint64_t seed = 1;
  for (int layer = 0; layer < 32; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      tensors.push_back(bf16(prefix + "self_attn." + name + ".weight", {kWidth, kWidth}, ++seed));
    }
    tensors.push_back(bf16(prefix + "mlp.gate_proj.weight", {kInner, kWidth}, ++seed));
    tensors.push_back(bf16(prefix + "mlp.up_proj.weight", {kInner, kWidth}, ++seed));
    tensors.push_back(bf16(prefix + "mlp.down_proj.weight", {kWidth, kInner}, ++seed));
    tensors.push_back(bf16(prefix + "input_layernorm.weight", {kWidth}, ++seed));
  }
  tensors.push_back(bf16("model.norm.weight", {kWidth}, ++seed));
  tensors.push_back(bf16("lm_head.weight", {kWords, kWidth}, ++seed));
  return tensors;
}

Tensor& named(std::vector<Tensor>& tensors, const std::string& name) {
  return *std::ranges::find(tensors, name, &Tensor::name);
}
const ReportTensor& named(const Report& report, const std::string& name) {
  const auto found = std::ranges::find(report.tensors, name, &ReportTensor::name);
  EXPECT_NE(found, report.tensors.end()) << name;
  return *found;
}

class Reports : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::vector<Tensor>& tensors) {
    const std::string path = (dir_ / (name + ".safetensors")).string();
    write_safetensors(path, tensors, Metadata{{"format", "pt"}});
    return path;
  }
  Report collect(const std::vector<Tensor>& tensors,
                 const std::optional<std::vector<Tensor>>& against = std::nullopt,
                 unsigned threads = 3) {
    const std::vector<std::string> source{write("tiny", tensors)};
    const Checkpoint checkpoint(source);
    std::optional<Checkpoint> other;
    if (against) other.emplace(std::vector<std::string>{write("base", *against)});
    const std::atomic<bool> stop = false;
    std::atomic<std::uint64_t> bytes = 0;
    Report report;
    EXPECT_EQ(collect_report(checkpoint, other ? &*other : nullptr, source,
                             {stop, [&bytes](std::uint64_t n) { bytes += n; }, threads}, report),
              0);
    bytes_ = bytes;
    return report;
  }
  TempDir dir_;
  std::uint64_t bytes_ = 0;  // the reported progress
};

std::vector<std::string> names_of(const Report& report, const Finding& finding) {
  std::vector<std::string> names;
  for (const std::uint32_t i : finding.tensors) names.push_back(report.tensors[i].name);
  return names;
}

TEST_F(Reports, FindNanZeroLayerAndEqualTensors) {
  std::vector<Tensor> tensors = model();
  named(tensors, "model.layers.3.mlp.up_proj.weight").bytes.replace(200, 2, "\xc0\x7f");
  std::ranges::fill(named(tensors, "model.layers.20.mlp.down_proj.weight").bytes, '\0');
  named(tensors, "lm_head.weight").bytes = tensors[0].bytes;

  const Report report = collect(tensors);

  ASSERT_EQ(report.findings.size(), 3U);
  EXPECT_EQ(report.findings[0].severity, Severity::kBroken);
  EXPECT_EQ(report.findings[1].severity, Severity::kBroken);
  EXPECT_EQ(report.findings[2].severity, Severity::kUsual) << "tied embeddings";
  EXPECT_EQ(report.findings[0].kind, Kind::kNan);
  EXPECT_EQ(
      report.findings[0].text,
      "NaN in 1 tensor: \"model.layers.3.mlp.up_proj.weight\" (1 of 4,320 values, at [2,20])");
  EXPECT_EQ(report.findings[1].kind, Kind::kAllZero);
  EXPECT_EQ(report.findings[1].text,
            "only zeros in 1 tensor: \"model.layers.20.mlp.down_proj.weight\"");
  EXPECT_EQ(report.findings[2].kind, Kind::kEqual);
  EXPECT_EQ(names_of(report, report.findings[2]),
            (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
  EXPECT_EQ(report.title, "tiny");
  EXPECT_EQ(report.format, "safetensors");
  EXPECT_EQ(report.tensors.size(), tensors.size());
  EXPECT_EQ(report.tensors[1].name, "model.embed_tokens.weight");
  EXPECT_EQ(report.tensors[10].name, "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(bytes_, report.bytes);
}

TEST_F(Reports, DoNotDependOnThreadCount) {
  std::vector<Tensor> tensors{bf16("large", {3000, 2048}, 1), bf16("small", {40, 30}, 2),
                              bf16("copy", {3000, 2048}, 1), random_tensor("f", "F64", {300'000})};
  std::vector<Tensor> base = tensors;
  base[0] = bf16("large", {3000, 2048}, 3);
  base[3] = random_tensor("f", "F64", {300'000}, 5);

  const std::string page = report_page(collect(tensors, base, 1));

  for (const unsigned threads : {2U, 5U, 16U}) {
    const Report report = collect(tensors, base, threads);
    EXPECT_EQ(report_page(report), page) << threads;
    EXPECT_EQ(report.tensors[3].name, "small");
    const Report one = collect(tensors, base, 1);
    for (std::size_t i = 0; i < 4; ++i) {
      const Difference& a = *report.tensors[i].difference;
      const Difference& b = *one.tensors[i].difference;
      EXPECT_EQ(a.distance, b.distance);
      EXPECT_EQ(a.equal, b.equal);
      EXPECT_EQ(a.largest, b.largest);
      EXPECT_EQ(report.tensors[i].thumbnail->pixels, one.tensors[i].thumbnail->pixels);
      EXPECT_EQ(report.tensors[i].histogram->counts, one.tensors[i].histogram->counts);
    }
  }
}

TEST_F(Reports, HaveHistogramAndThumbnailUpTo48Pixels) {
  const std::vector<Tensor> tensors{
      bf16("w", {100, 200}, 1), bf16("few", {7}, 2), random_tensor("c", "C64", {3}),
      random_tensor("none", "F16", {0}), random_tensor("i", "I32", {50})};
  const Report report = collect(tensors);
  const Checkpoint checkpoint(std::vector<std::string>{(dir_ / "tiny.safetensors").string()});
  const std::atomic<bool> stop = false;
  for (const char* name : {"w", "few"}) {
    const auto tensor = checkpoint.tensor(*checkpoint.find(name));
    Distribution expected;
    ASSERT_EQ(value_distribution(tensor.content(), tensor.dtype, {stop}, expected), 0);
    const ReportTensor& shown = named(report, name);
    EXPECT_EQ(shown.histogram->counts, expected.histogram.counts);
    EXPECT_EQ(*shown.quantiles, expected.quantiles);
    EXPECT_EQ(shown.stats->std, expected.stats.std);
  }
  const Thumbnail& picture = *named(report, "w").thumbnail;
  EXPECT_EQ(picture.width, 40U);
  EXPECT_EQ(picture.height, 34U);
  const ReportTensor& w = named(report, "w");
  const std::vector<float> values = some_weights(20'000, 1);
  float largest = 0;  // the largest magnitude in the block of 3 x 5 at (6, 10)
  for (std::size_t y = 6; y < 9; ++y) {
    for (std::size_t x = 10; x < 15; ++x) {
      const float value =
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[y * 200 + x]) & 0xFFFF0000U);
      if (std::abs(value) > std::abs(largest)) largest = value;
    }
  }
  EXPECT_EQ(picture.pixels[2 * 40 + 2], picture_color(largest, 3 * *w.stats->std));
  EXPECT_FALSE(named(report, "c").histogram);
  EXPECT_EQ(named(report, "c").stats->count, 3U);
  EXPECT_FALSE(named(report, "none").thumbnail);
  EXPECT_TRUE(named(report, "i").histogram);
}

TEST_F(Reports, ReportDifferencePerTensor) {
  const std::vector<Tensor> base{
      f32("same", {1, 2}), f32("values", {3, 4, 0}),       f32("to nan", {3, 4, 0}),
      f64("tiny", 0),      f32("retyped", {1, 2}),         f32("reshaped", {1, 2, 3}),
      f32("gone", {1}),    random_tensor("c", "C64", {2}), f32("from zero", {0, 0})};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Tensor> tensors{f32("same", {1, 2}),
                                    f32("values", {3, 1, 0}),
                                    f32("to nan", {3, 1, nan}),
                                    f64("tiny", 1e-170),
                                    bf16("retyped", {2}, std::vector<float>{1, 2}),
                                    f32("reshaped", {1, 2}),
                                    f32("new", {5}),
                                    random_tensor("c", "C64", {2}, 7),
                                    f32("from zero", {0, 1})};
  const Report report = collect(tensors, base);
  const auto difference = [&](const char* name) { return *named(report, name).difference; };

  EXPECT_EQ(report.against, "base");
  EXPECT_EQ(difference("same").kind, Difference::Kind::kEqual);
  EXPECT_EQ(difference("same").equal, 1);
  EXPECT_EQ(difference("values").kind, Difference::Kind::kValues);
  EXPECT_EQ(difference("values").largest, 3);
  EXPECT_DOUBLE_EQ(*difference("values").distance, 3.0 / 5.0);
  EXPECT_EQ(difference("to nan").largest, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(difference("to nan").distance);
  EXPECT_DOUBLE_EQ(*difference("to nan").equal, 1.0 / 3.0);
  EXPECT_FALSE(difference("tiny").distance) << "the square of 1e-170 is 0";
  EXPECT_EQ(difference("tiny").largest, 1e-170);
  EXPECT_DOUBLE_EQ(*difference("values").equal, 2.0 / 3.0);
  EXPECT_EQ(difference("retyped").kind, Difference::Kind::kType);
  EXPECT_EQ(difference("retyped").was, "F32 [2]");
  EXPECT_EQ(difference("retyped").distance, 0);
  EXPECT_EQ(difference("reshaped").kind, Difference::Kind::kShape);
  EXPECT_EQ(difference("reshaped").was, "F32 [3]");
  EXPECT_FALSE(difference("reshaped").distance);
  EXPECT_EQ(difference("new").kind, Difference::Kind::kAdded);
  EXPECT_EQ(difference("c").kind, Difference::Kind::kValues);
  EXPECT_FALSE(difference("from zero").distance);
  EXPECT_EQ(difference("from zero").largest, 1);
  ASSERT_EQ(report.removed.size(), 1U);
  EXPECT_EQ(report.removed[0].name, "gone");
}

TEST_F(Reports, ReportUnreadableTensorAndShowRest) {
  const std::vector<std::string> sources{write("a", {f32("there", {1, 2})}),
                                         write("b", {f32("cut", {1, 2})})};
  const Checkpoint checkpoint(sources);
  std::filesystem::resize_file(sources[1], 20);
  const std::atomic<bool> stop = false;
  Report report;
  EXPECT_EQ(collect_report(checkpoint, nullptr, sources, {stop}, report), 0);
  EXPECT_TRUE(named(report, "there").stats);
  EXPECT_FALSE(named(report, "cut").stats);
  EXPECT_EQ(named(report, "cut").failure,
            "changed while it was open: open it again when no program writes to it");
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].kind, Kind::kUnreadable);
  EXPECT_EQ(report.findings[0].text,
            "1 tensor cannot be read: \"cut\" (changed while it was open: open it again when no "
            "program writes to it)");
}

// Collects a report of the sources as one checkpoint. Truncates the first source as soon as the
// first pass has read all bytes, so a second pass finds it changed.
Report report_with_changing_source(const std::vector<std::string>& sources) {
  const Checkpoint checkpoint(sources);
  const std::uint64_t all = totals_of(checkpoint).all.bytes;
  const std::atomic<bool> stop = false;
  std::uint64_t bytes = 0;
  const auto progress = [&](std::uint64_t count) {
    bytes += count;
    if (bytes == all) {
      std::filesystem::resize_file(sources[0], std::filesystem::file_size(sources[0]) - 1);
    }
  };
  Report report;
  EXPECT_EQ(collect_report(checkpoint, nullptr, sources, {stop, progress, 1}, report), 0);
  return report;
}

TEST_F(Reports, ReportSourceChangedBeforeSecondPass) {
  const Report report =
      report_with_changing_source({write("a", {f32("x", {1, 2})}), write("b", {f32("y", {1, 2})}),
                                   write("c", {f32("z", {3, 4})})});
  EXPECT_EQ(named(report, "x").failure,
            "changed while it was open: open it again when no program writes to it");
  EXPECT_FALSE(named(report, "x").stats);
  EXPECT_EQ(named(report, "y").failure, "");
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].kind, Kind::kUnreadable);
}

TEST_F(Reports, ReportSourceChangedBeforePictures) {
  std::vector<Tensor> others;
  for (std::size_t i = 0; i < Report::kMaxPictured; ++i) {
    others.push_back(f32("layers." + std::to_string(i) + ".w", some_weights(16, i)));
  }
  const Report report = report_with_changing_source(
      {write("a", {f32("odd", {1, std::numeric_limits<float>::infinity()})}), write("b", others)});
  EXPECT_EQ(named(report, "odd").failure,
            "changed while it was open: open it again when no program writes to it");
  EXPECT_FALSE(named(report, "odd").stats);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].kind, Kind::kUnreadable);
}

TEST_F(Reports, ReportWhichCheckpointHasUnreadableTensor) {
  const std::vector<std::string> local{write("a", {random_tensor("c", "C64", {2}, 1)})};
  const std::vector<std::string> other{write("b", {random_tensor("c", "C64", {2}, 2)})};
  const Checkpoint a(local), b(other);
  std::filesystem::resize_file(other[0], 20);
  const std::atomic<bool> stop = false;
  Report report;
  EXPECT_EQ(collect_report(a, &b, local, {stop}, report), 0);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].text,
            "1 tensor of the other checkpoint cannot be read: \"c\" (changed while it was open: "
            "open it again when no program writes to it)");
  EXPECT_TRUE(named(report, "c").stats);
  std::filesystem::resize_file(local[0], 20);
  EXPECT_EQ(collect_report(a, &b, local, {stop}, report), 0);
  ASSERT_EQ(report.findings.size(), 2U) << "one finding for each checkpoint";
  EXPECT_EQ(report.findings[0].text,
            "1 tensor cannot be read: \"c\" (changed while it was open: open it again when no "
            "program writes to it)");
}

TEST_F(Reports, ReturnEINTRWhenStopped) {
  const std::vector<std::string> source{write("m", model())};
  const Checkpoint checkpoint(source);
  std::atomic<bool> stop = false;
  Report report;
  EXPECT_EQ(collect_report(checkpoint, nullptr, source,
                           {stop, [&stop](std::uint64_t) { stop = true; }, 2}, report),
            EINTR);
}

TEST_F(Reports, PictureOnlyOddTensorsAboveLimit) {
  std::vector<Tensor> tensors;
  const std::size_t count = Report::kMaxPictured + 100;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<float> values = some_weights(16, i);
    if (i == 17) values[3] = std::numeric_limits<float>::infinity();
    if (i == 99) values[3] = 50;
    tensors.push_back(f32("layers." + std::to_string(i) + ".w", values));
  }
  const Report report = collect(tensors);
  std::size_t pictured = 0;
  for (const ReportTensor& tensor : report.tensors) {
    EXPECT_EQ(tensor.histogram.has_value(), tensor.thumbnail.has_value());
    pictured += tensor.thumbnail ? 1 : 0;
  }
  EXPECT_TRUE(named(report, "layers.17.w").thumbnail);
  EXPECT_TRUE(named(report, "layers.99.w").histogram);
  EXPECT_FALSE(named(report, "layers.18.w").thumbnail);
  EXPECT_LT(pictured, 20U);
}

TEST_F(Reports, FindSuspectScalesConstantsAndZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Report report = collect({f32("good.weight_scale", {0.1F, 0.2F}),
                                 f32("bad.weight_scale", {0.1F, -0.2F}),
                                 f32("zero.weight_scale_inv", {0.1F, 0}),
                                 f32("wide.scales", {1e-9F, 1e9F}),
                                 f32("nan.absmax", {1, nan}),
                                 f32("logit_scale", {-1, 2}),
                                 f32("norm.weight", {1, 1}),
                                 f32("one", {7}),
                                 f32("one.zero", {0}),
                                 f32("minus", {0, -0.0F}),
                                 {"mask", "BOOL", {2000}, std::string(2000, '\0')},
                                 {"qzeros", "I8", {2000}, std::string(2000, '\0')},
                                 {"qweight", "I8", {2000}, std::string(2000, '\0')},
                                 {"short", "I8", {20}, std::string(20, '\0')}});
  std::map<Kind, std::vector<std::string>> found;
  for (const Finding& finding : report.findings) {
    for (const std::string& name : names_of(report, finding)) found[finding.kind].push_back(name);
  }
  std::ranges::sort(found[Kind::kScale]);
  EXPECT_EQ(found[Kind::kScale],
            (std::vector<std::string>{"bad.weight_scale", "nan.absmax", "wide.scales",
                                      "zero.weight_scale_inv"}));
  EXPECT_EQ(found[Kind::kConstant], std::vector<std::string>{"norm.weight"});
  EXPECT_EQ(found[Kind::kAllZero], (std::vector<std::string>{"minus", "qweight"}));
  EXPECT_EQ(found[Kind::kNan], std::vector<std::string>{"nan.absmax"});
}

TEST_F(Reports, ShowPositionsOfNanAndInfinityWithCommand) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Tensor a = f32("it's", {1, 2, 3, nan, 5, nan});
  a.shape = {2, 3};
  const Report report = collect({a, f32("b", {1, 2, -inf}), f32("c", {nan})});

  EXPECT_PRED_FORMAT2(testing::IsSubstring, "(the first of \"it's\" at [1,0])",
                      report.findings.at(0).text);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "(1 of 3 values, at [2])", report.findings.at(1).text);
  const std::string page = report_page(report);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "2 NaN, the first at [1,0]", page);
  EXPECT_PRED_FORMAT2(
      testing::IsSubstring,
      R"("nan":"[1,0] [1,2]","largest":"[1,1]","look":"stfs-info cat --slice 1,0:3 --as f32 )",
      page);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, R"( 'it'\\''s' | od -A n -v -t f4")", page);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, R"("inf":"[2]","largest":"[1]")", page);
}

TEST_F(Reports, SortFindingsBySeverity) {
  const float inf = std::numeric_limits<float>::infinity();
  const Report report = collect({f32("a.bias", {0, 0, 0}), f32("norm.weight", {1, 1, 1}),
                                 f32("same", {1, 2, 3}), f32("same.too", {1, 2, 3}),
                                 f32("seven", {7, 7}), f32("w", {1, inf}), f32("zeros", {0, 0})});
  std::vector<std::pair<Severity, std::string>> found;
  for (const Finding& finding : report.findings) {
    found.emplace_back(finding.severity, names_of(report, finding).front());
  }
  const std::vector<std::pair<Severity, std::string>> expected{
      {Severity::kBroken, "w"},  {Severity::kBroken, "zeros"},      {Severity::kOdd, "same"},
      {Severity::kOdd, "seven"}, {Severity::kUsual, "norm.weight"}, {Severity::kUsual, "a.bias"}};
  EXPECT_EQ(found, expected);
}

TEST_F(Reports, FindOutliersByRoleAndLayer) {
  std::vector<Tensor> tensors = model();
  std::uint64_t seed = 1000;
  const auto scale = [&](const std::string& name, float by) {
    Tensor& tensor = named(tensors, name);
    std::vector<float> values = some_weights(product(tensor.shape), ++seed);
    for (float& value : values) value *= by;
    tensor = bf16(name, tensor.shape, values);
  };
  scale("model.layers.5.self_attn.k_proj.weight", 9);
  for (const char* role :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm"}) {
    scale("model.layers.30." + std::string(role) + ".weight", 20);
  }
  named(tensors, "model.layers.9.mlp.up_proj.weight").bytes.replace(200, 2, "\x80\x3f"s);  // 1

  const Report report = collect(tensors);

  ASSERT_EQ(report.findings.size(), 3U);
  for (const Finding& finding : report.findings) {
    EXPECT_EQ(finding.kind, Kind::kOutlier);
    EXPECT_EQ(finding.severity, Severity::kOdd);
  }
  EXPECT_EQ(report.findings[0].text,
            "RMS 20 times those of other layers in all of \"model.layers.30\"");
  EXPECT_EQ(report.findings[0].tensors.size(), 8U);
  EXPECT_EQ(names_of(report, report.findings[1]).front(), "model.layers.5.self_attn.k_proj.weight");
  EXPECT_NE(report.findings[1].text.find("RMS "), std::string::npos);
  EXPECT_EQ(names_of(report, report.findings[2]),
            std::vector<std::string>{"model.layers.9.mlp.up_proj.weight"});
  EXPECT_NE(report.findings[2].text.find("largest |x| / std"), std::string::npos);
}

TEST_F(Reports, ReportModelFactsFromConfig) {
  const std::filesystem::path directory = dir_ / "model";
  std::filesystem::create_directory(directory);
  std::vector<Tensor> tensors{bf16("lm_head.weight", {8, 4}, 1),
                              bf16("model.embed_tokens.weight", {8, 4}, 1)};
  const auto report_with = [&](const std::string& config) {
    write_safetensors((directory / "model.safetensors").string(), tensors, Metadata{});
    write_file(directory / "config.json", config);
    const std::vector<std::string> source{directory.string()};
    const Checkpoint checkpoint(source, {.with_model_files = true});
    const std::atomic<bool> stop = false;
    Report report;
    EXPECT_EQ(collect_report(checkpoint, nullptr, source, {stop}, report), 0);
    return report;
  };
  const Report report = report_with(
      R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "vocab_size": 128256,
          "tie_word_embeddings": false,
          "text_config": {"max_position_embeddings": 131072, "num_attention_heads": 24}})");
  const std::vector<std::pair<std::string, std::string>> facts{{"Architecture", "LlamaForCausalLM"},
                                                               {"Layers", "32"},
                                                               {"Heads", "24"},
                                                               {"Context", "131,072"},
                                                               {"Vocabulary", "128,256"}};
  EXPECT_EQ(report.facts, facts);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].severity, Severity::kOdd);
  EXPECT_NE(report.findings[0].text.find("tie_word_embeddings is false"), std::string::npos);
  EXPECT_EQ(report_with(R"({"tie_word_embeddings": true})").findings[0].severity, Severity::kUsual);
  tensors[0] = bf16("lm_head.weight", {8, 4}, 2);
  EXPECT_EQ(report_with(R"({"tie_word_embeddings": true})").findings[0].severity, Severity::kOdd);
  EXPECT_TRUE(report_with("not JSON").facts.empty());
  const std::string deep(100, '['),
      ends(100, ']');  // the values would use a hundred times the memory of the text
  EXPECT_TRUE(report_with("{\"num_hidden_layers\": 32, \"a\": " + deep + ends + "}").facts.empty());
}

TEST_F(Reports, ThumbnailShowsStructureWithoutNoise) {
  constexpr std::uint64_t kSide = 960;  // 20 x 20 elements per pixel
  std::vector<float> values = some_weights(kSide * kSide, 3);
  for (std::uint64_t row = 200; row < 240; ++row) {
    for (std::uint64_t x = 0; x < kSide; ++x) values[row * kSide + x] *= 4;
  }
  values[900 * kSide + 900] = std::numeric_limits<float>::quiet_NaN();
  const Report report = collect({bf16("w", {kSide, kSide}, values), f32("norm", {0.9F, 1.1F, 1})});
  const Thumbnail& picture = *named(report, "w").thumbnail;
  EXPECT_EQ(picture.shows, Thumbnail::Shows::kStrength);
  ASSERT_EQ(picture.width * picture.height, 48U * 48U);
  for (std::size_t i = 0; i < picture.pixels.size(); ++i) {
    const int shade = picture.pixels[i] - 126;
    const std::size_t row = i / 48;
    if (i == 45 * 48 + 45) {
      EXPECT_EQ(picture.pixels[i], 254) << "NaN";
    } else if (row == 10 || row == 11) {
      EXPECT_GT(shade, 90) << i;
    } else {
      EXPECT_LT(shade, 0) << i;
      EXPECT_GT(shade, -60) << i;
    }
  }
  const Thumbnail& norm = *named(report, "norm").thumbnail;
  EXPECT_EQ(norm.shows, Thumbnail::Shows::kValues);
  EXPECT_FLOAT_EQ(static_cast<float>(norm.middle), 1)
      << "values of one sign are shown relative to their mean";
  EXPECT_LT(norm.pixels[0], 126);
}

TEST_F(Reports, HistogramOfBaseUsesSameBins) {
  const std::vector<float> values = some_weights(10'000, 4);
  std::vector<float> wider = values;
  for (float& value : wider) value *= 3;
  const Report report = collect({f32("w", values), f32("same", values)},
                                std::vector<Tensor>{f32("w", wider), f32("same", values)});
  const ReportTensor& w = named(report, "w");
  ASSERT_TRUE(w.histogram_before);
  EXPECT_EQ(w.histogram_before->low, w.histogram->low);
  EXPECT_EQ(w.histogram_before->high, w.histogram->high);
  EXPECT_LE(w.histogram->low, -0.1) << "the bins must be wide enough for both";
  std::uint64_t now = w.histogram->below + w.histogram->above;
  std::uint64_t before = w.histogram_before->below + w.histogram_before->above;
  for (const std::uint64_t count : w.histogram->counts) now += count;
  for (const std::uint64_t count : w.histogram_before->counts) before += count;
  EXPECT_EQ(now, values.size());
  EXPECT_EQ(before, values.size());
  EXPECT_GT(*std::ranges::max_element(w.histogram->counts),
            2 * *std::ranges::max_element(w.histogram_before->counts));
  EXPECT_FALSE(named(report, "same").histogram_before);
}

TEST_F(Reports, TensorsAreEqualOnlyWithEqualBytes) {
  const Report report = collect({f32("a", {1, 2, 3, 4}),
                                 f32("b", {4, 3, 2, 1}),
                                 f32("c", {1, 2, 3, 4}),
                                 f32("d", {4, 3, 2, 1}),
                                 {"e", "F32", {2, 2}, f32("", {1, 2, 3, 4}).bytes}});
  EXPECT_FALSE(named(report, "a").equal_to);
  EXPECT_FALSE(named(report, "b").equal_to);
  EXPECT_EQ(named(report, "c").equal_to, 0U);
  EXPECT_EQ(named(report, "d").equal_to, 1U);
  EXPECT_FALSE(named(report, "e").equal_to) << "the shape differs";
  EXPECT_EQ(report.findings.size(), 2U);
}

TEST(Differences, MatchPlainLoopOnAllVectorTargets) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t count : {1UL, 63UL, 64UL, 4096UL, 10'007UL, 300'000UL}) {
    std::vector<float> a = some_weights(count, 1);
    std::vector<float> b = some_weights(count, 2);
    for (std::size_t i = 0; i < count; i += 3) b[i] = a[i];
    if (count > 5000) {
      a[5000] = nan;
      b[5000] = nan;
      a[5001] = inf;
      b[5002] = -inf;
      b[5003] = 9;
      b[9000] = 9 + a[9000] - a[5003];
    }
    ValueDifference expected;
    long double squares = 0, norm = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double x = a[i], y = b[i];
      expected.equal += x == y || (std::isnan(x) && std::isnan(y)) ? 1 : 0;
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      squares += static_cast<long double>((x - y) * (x - y));
      norm += static_cast<long double>(y * y);
      if (std::abs(x - y) > expected.largest) {
        expected.largest = std::abs(x - y);
        expected.first_largest = i;
      }
    }
    const auto content_of = [](const std::vector<float>& values) {
      Content content;
      content.borrowed({reinterpret_cast<const char*>(values.data()), values.size() * 4});
      return content;
    };
    const std::atomic<bool> stop = false;
    with_each_target([&](const char*) {
      const Content content_a = content_of(a);
      const Content content_b = content_of(b);
      const PassOptions options{.stop = stop, .threads = 3};
      DifferenceSink sink(content_b, DType::kF32, options);
      ASSERT_EQ(see_values(content_a, DType::kF32, options, {&sink}), 0);
      ValueDifference found;
      ASSERT_EQ(sink.result(found), 0);
      EXPECT_EQ(found.elements, count);
      EXPECT_EQ(found.equal, expected.equal);
      EXPECT_EQ(found.largest, expected.largest);
      EXPECT_EQ(found.first_largest, expected.first_largest);
      EXPECT_EQ(found.unlike, count > 5000 ? 2U : 0U);
      EXPECT_NEAR(found.squares, static_cast<double>(squares),
                  1e-14 * static_cast<double>(squares));
      EXPECT_NEAR(found.norm, static_cast<double>(norm), 1e-14 * static_cast<double>(norm));
    });
  }
}

}  // namespace
}  // namespace stfs::test
