#include "core/report/findings.h"

#include "core/base/text.h"
#include "core/report/inspect_command.h"
#include "core/report/outliers.h"
#include "core/values/picture/markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace stfs {
namespace {

using Positions = std::vector<std::uint32_t>;

constexpr std::size_t kMostNamed = 3;  // the maximum number of tensors in the text of a finding
// The maximum number of groups of equal tensors with a finding of their own.
constexpr std::size_t kMaxGroups = 20;

using Severity = Finding::Severity;
using markup::counted;
using markup::grouped;

// Returns `"a", "b", "c" and 9 more`.
std::string some_names(const Report& report, const Positions& tensors) {
  std::string text;
  const std::size_t named = std::min(tensors.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == tensors.size() ? " and " : ", ";
    text += in_quotes(report.tensors[tensors[i]].name);
  }
  if (tensors.size() > named) text += " and " + grouped(tensors.size() - named) + " more";
  return text;
}

bool has_fractions(const ReportTensor& tensor) {
  const auto dtype = dtype_from_name(tensor.type);
  if (!dtype) return true;  // a block type of GGUF
  const TypeKind kind = type_info(*dtype).kind;
  return kind == TypeKind::kFloat || kind == TypeKind::kQuantized;
}

// Returns true if all values are finite and equal.
bool is_constant(const ValueStats& stats) {
  return stats.count > 1 && stats.min && *stats.min == *stats.max && stats.nan + stats.inf == 0;
}

bool is_all_zero(std::string_view name, bool has_fractions, bool is_bool, const ValueStats& stats) {
  constexpr std::uint64_t kManyIntegers = 1024;
  if (stats.count < 2 || stats.zeros != stats.count) return false;
  if (has_fractions) return true;
  const bool is_zero_point = name.find("zero") != std::string_view::npos;
  return stats.count >= kManyIntegers && !is_bool && !is_zero_point;
}
bool is_all_zero(const ReportTensor& tensor) {
  return is_all_zero(tensor.name, has_fractions(tensor), tensor.type == "BOOL", *tensor.stats);
}

// Biases, norms and adapters may be zero before a model is trained.
bool may_be_zero(std::string_view name, std::size_t dimensions) {
  if (name.find("lora_B") != std::string_view::npos) return true;
  return dimensions <= 1 && (name.ends_with("bias") || name.find("norm") != std::string_view::npos);
}
bool may_be_zero(const ReportTensor& tensor) {
  return may_be_zero(tensor.name, tensor.shape.size());
}

bool is_of_ones(const ReportTensor& tensor) {
  return tensor.shape.size() <= 1 && *tensor.stats->min == 1;
}

bool has_name_of_scales(std::string_view name) {
  constexpr std::array kEnds = {"_scale",  "_scale_inv", "_scale_2", "_scales",
                                ".scales", ".absmax",    ".SCB"};
  constexpr std::array kOthers = {"logit_scale", "layer_scale"};  // values that a model has learnt
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return std::ranges::any_of(kEnds, ends) && std::ranges::none_of(kOthers, ends);
}

// Returns why a scale is suspicious. Returns "" for other scales and other tensors.
std::string suspicion_of(const ReportTensor& tensor) {
  constexpr double kMaxRatio = 0x1p24;
  const ValueStats& stats = *tensor.stats;
  // Very small scales are not suspicious for F8_E8M0, because OCP MX uses 2^-127 for a block of
  // zeros.
  if (!has_name_of_scales(tensor.name) || !has_fractions(tensor)) return "";
  if (stats.nan > 0) return "NaN";
  if (!stats.min) return "";
  if (*stats.min < 0) return "negative values";
  if (stats.zeros > 0) return "zeros";
  if (tensor.type != "F8_E8M0" && *stats.max > kMaxRatio * *stats.min) {
    return "a largest value over 2^24 times the smallest one";
  }
  return "";
}

class Findings {
 public:
  explicit Findings(Report& report) : report_(report) {}

  void add(Finding::Kind kind, Severity severity, std::string text, Positions tensors) {
    report_.findings.push_back({kind, std::move(text), std::move(tensors), severity});
  }

  // Adds `NaN in 2 tensors: "a" and "b"` for the tensors for which `is_so` returns true.
  void add_where(Finding::Kind kind, Severity severity, const std::string& what,
                 const std::function<bool(const ReportTensor&)>& is_so,
                 std::uint64_t ValueStats::*count = nullptr,
                 std::vector<std::uint64_t> ValueStats::*places = nullptr) {
    Positions found;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      const ReportTensor& tensor = report_.tensors[i];
      if (tensor.stats && is_so(tensor)) found.push_back(i);
    }
    if (found.empty()) return;
    if (count != nullptr) {
      std::ranges::stable_sort(found, std::greater<>(),
                               [&](std::uint32_t i) { return (*report_.tensors[i].stats).*count; });
    }
    std::string text = what + " in " + counted(found.size(), "tensor") + ": ";
    text += some_names(report_, found);
    if (count != nullptr) text += " (" + share_and_place(found, count, places) + ")";
    add(kind, severity, std::move(text), std::move(found));
  }

  void add_unreadable(const std::map<std::uint32_t, std::string>& there) {
    std::map<std::string, Positions> by_reason;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      const std::string& failure = report_.tensors[i].failure;
      if (!failure.empty()) by_reason[failure].push_back(i);
    }
    for (auto& [reason, tensors] : by_reason) {
      add(Finding::Kind::kUnreadable, Severity::kBroken,
          counted(tensors.size(), "tensor") + " cannot be read: " + some_names(report_, tensors) +
              " (" + reason + ")",
          tensors);
    }
    by_reason.clear();
    for (const auto& [i, reason] : there) by_reason[reason].push_back(i);
    for (auto& [reason, tensors] : by_reason) {
      add(Finding::Kind::kUnreadable, Severity::kBroken,
          counted(tensors.size(), "tensor") + " of the other checkpoint cannot be read: " +
              some_names(report_, tensors) + " (" + reason + ")",
          tensors);
    }
  }

  void add_missing(std::span<const MissingTensor> missing) {
    if (missing.empty()) return;
    std::string text = counted(missing.size(), "tensor or part") + " missing: ";
    const std::size_t named = std::min(missing.size(), kMostNamed);
    for (std::size_t i = 0; i < named; ++i) {
      const MissingTensor& one = missing[i];
      text += (i > 0 ? ", " : "") + (one.name ? in_quotes(*one.name) : "all tensors") + " of " +
              in_quotes(one.source);
    }
    if (missing.size() > named) text += " and " + grouped(missing.size() - named) + " more";
    add(Finding::Kind::kMissing, Severity::kBroken, std::move(text), {});
  }

  void add_scales() {
    std::map<std::string, Positions> by_suspicion;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      if (!report_.tensors[i].stats) continue;
      std::string suspicion = suspicion_of(report_.tensors[i]);
      if (!suspicion.empty()) by_suspicion[std::move(suspicion)].push_back(i);
    }
    for (auto& [suspicion, tensors] : by_suspicion) {
      add(Finding::Kind::kScale, Severity::kOdd,
          "suspicious scales, with " + suspicion + ", in " + counted(tensors.size(), "tensor") +
              ": " + some_names(report_, tensors),
          tensors);
    }
  }

  void add_equal() {
    std::map<std::uint32_t, Positions> by_first;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      const ReportTensor& tensor = report_.tensors[i];
      if (!tensor.equal_to || is_constant(*tensor.stats) || tensor.elements < 2) continue;
      Positions& group = by_first[*tensor.equal_to];
      if (group.empty()) group.push_back(*tensor.equal_to);
      group.push_back(i);
    }
    std::vector<Positions> groups;
    groups.reserve(by_first.size());
    for (auto& [first, group] : by_first) {
      if (!are_tied(group)) groups.push_back(std::move(group));
    }
    const auto bytes_of = [&](const Positions& group) {
      return report_.tensors[group.front()].bytes * (group.size() - 1);
    };
    std::ranges::stable_sort(groups, std::greater<>(), bytes_of);
    Positions rest;
    std::size_t more = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (i >= kMaxGroups) {
        ++more;
        rest.insert(rest.end(), groups[i].begin(), groups[i].end());
        continue;
      }
      add(Finding::Kind::kEqual, Severity::kOdd,
          counted(groups[i].size(), "tensor") + " with equal bytes (" +
              human_bytes(report_.tensors[groups[i].front()].bytes) +
              " each): " + some_names(report_, groups[i]),
          groups[i]);
    }
    if (more == 0) return;
    add(Finding::Kind::kEqual, Severity::kOdd,
        counted(more, "more group") + " of tensors with equal bytes", rest);
  }

  // Handles the embeddings at both ends of a model. Tied embeddings are one tensor, but some
  // programs store it twice.
  void add_tied() {
    std::optional<std::uint32_t> in, out;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      if (!report_.tensors[i].stats) continue;
      if (is_input_embedding(report_.tensors[i].name)) in = i;
      if (is_output_embedding(report_.tensors[i].name)) out = i;
    }
    if (!in || !out) return;
    const ReportTensor& first = report_.tensors[std::min(*in, *out)];
    const ReportTensor& second = report_.tensors[std::max(*in, *out)];
    const bool are_equal = second.equal_to == std::min(*in, *out) ||
                           (first.equal_to && first.equal_to == second.equal_to);
    const std::string both = in_quotes(first.name) + " and " + in_quotes(second.name);
    if (are_equal && report_.ties_embeddings == false) {
      add(Finding::Kind::kEqual, Severity::kOdd,
          both + " are equal, and tie_word_embeddings is false in config.json", {*in, *out});
    } else if (are_equal) {
      add(Finding::Kind::kEqual, Severity::kUsual, both + " are equal: tied embeddings",
          {*in, *out});
    } else if (report_.ties_embeddings == true && first.shape == second.shape) {
      add(Finding::Kind::kEqual, Severity::kOdd,
          both + " differ, and tie_word_embeddings is true in config.json", {*in, *out});
    }
  }

  void add_outliers() {
    const Outliers outliers = outliers_of(report_);
    for (const OddLayer& layer : outliers.layers) {
      add(Finding::Kind::kOutlier, Severity::kOdd,
          "RMS " + times(layer.ratio) + " those of other layers in all of " + in_quotes(layer.name),
          layer.tensors);
    }
    add_outliers("RMS", outliers.rms);
    add_outliers("largest |x| / std", outliers.reach);
  }

 private:
  static bool is_input_embedding(std::string_view name) {
    return name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight") ||
           name == "token_embd.weight";
  }
  static bool is_output_embedding(std::string_view name) {
    return name == "output.weight" || name.ends_with("lm_head.weight");
  }

  // Returns true for a group that add_tied() handles.
  bool are_tied(const Positions& group) const {
    const auto is = [&](bool (*what)(std::string_view)) {
      return std::ranges::any_of(group,
                                 [&](std::uint32_t i) { return what(report_.tensors[i].name); });
    };
    return group.size() == 2 && is(is_input_embedding) && is(is_output_embedding);
  }

  // Returns "1 of 64 values, at [3,5]"; for several tensors "the first of "a" at [3,5]".
  std::string share_and_place(const Positions& found, std::uint64_t ValueStats::*count,
                              std::vector<std::uint64_t> ValueStats::*places) const {
    const ReportTensor& tensor = report_.tensors[found.front()];
    const ValueStats& stats = *tensor.stats;
    const std::string at =
        (stats.*places).empty()
            ? ""
            : " at " + places_text(1, std::span(stats.*places).first(1), tensor.shape);
    if (found.size() > 1) return "the first of " + in_quotes(tensor.name) + at;
    return grouped(stats.*count) + " of " + counted(stats.count, "value") +
           (at.empty()         ? ""
            : stats.*count > 1 ? ", the first" + at
                               : "," + at);
  }

  static std::string times(double ratio) {
    return ratio < 1 ? "1/" + markup::number(1 / ratio, 2) + " of"
                     : markup::number(ratio, 2) + " times";
  }

  void add_outliers(const std::string& what, const std::vector<Outlier>& outliers) {
    if (outliers.empty()) return;
    Positions tensors;
    tensors.reserve(outliers.size());
    for (const Outlier& outlier : outliers) tensors.push_back(outlier.tensor);
    const std::string far = what + " " + times(outliers.front().ratio) + " that of its kind in ";
    add(Finding::Kind::kOutlier, Severity::kOdd,
        outliers.size() == 1
            ? far + some_names(report_, tensors)
            : what + " unlike others of their kind in " + counted(tensors.size(), "tensor") + ": " +
                  some_names(report_, tensors) + " (the first " + times(outliers.front().ratio) +
                  " that of its kind)",
        tensors);
  }

  Report& report_;
};

}  // namespace

bool is_broken_zero(std::string_view name, std::span<const std::uint64_t> shape, DType dtype,
                    const ValueStats& stats) {
  const TypeKind kind = type_info(dtype).kind;
  const bool has_fractions = kind == TypeKind::kFloat || kind == TypeKind::kQuantized;
  return is_all_zero(name, has_fractions, kind == TypeKind::kBool, stats) &&
         !may_be_zero(name, shape.size());
}

void add_findings(Report& report, std::span<const MissingTensor> missing,
                  const std::map<std::uint32_t, std::string>& unreadable_there) {
  using Kind = Finding::Kind;
  report.findings.clear();
  Findings findings(report);
  findings.add_unreadable(unreadable_there);
  findings.add_missing(missing);
  findings.add_where(
      Kind::kNan, Severity::kBroken, "NaN", [](const ReportTensor& t) { return t.stats->nan > 0; },
      &ValueStats::nan, &ValueStats::nan_at);
  findings.add_where(
      Kind::kInfinity, Severity::kBroken, "infinity",
      [](const ReportTensor& t) { return t.stats->inf > 0; }, &ValueStats::inf,
      &ValueStats::inf_at);
  const std::string zeros = "only zeros";
  findings.add_where(Kind::kAllZero, Severity::kBroken, zeros,
                     [](const ReportTensor& t) { return is_all_zero(t) && !may_be_zero(t); });
  const auto is_constant_fraction = [](const ReportTensor& t) {
    return is_constant(*t.stats) && *t.stats->min != 0 && has_fractions(t);
  };
  findings.add_scales();
  findings.add_outliers();
  findings.add_equal();
  findings.add_tied();
  findings.add_where(
      Kind::kConstant, Severity::kOdd, "one value in all elements",
      [&](const ReportTensor& t) { return is_constant_fraction(t) && !is_of_ones(t); });
  findings.add_where(Kind::kConstant, Severity::kUsual, "ones", [&](const ReportTensor& t) {
    return is_constant_fraction(t) && is_of_ones(t);
  });
  findings.add_where(Kind::kAllZero, Severity::kUsual, "zeros",
                     [](const ReportTensor& t) { return is_all_zero(t) && may_be_zero(t); });
  std::ranges::stable_sort(report.findings, {}, &Finding::severity);
}

std::vector<std::uint32_t> odd_tensors(const Report& report) {
  Positions odd;
  std::unordered_set<std::uint32_t> known;
  const auto add = [&](std::uint32_t i) {
    if (odd.size() < Report::kMaxPictured && known.insert(i).second) odd.push_back(i);
  };
  // Take one tensor of each finding per round, so that each finding contributes some.
  for (std::size_t round = 0; round < Report::kMaxPictured; ++round) {
    bool has_more = false;
    for (const Finding& finding : report.findings) {
      if (round >= finding.tensors.size()) continue;
      add(finding.tensors[round]);
      has_more = true;
    }
    if (!has_more || odd.size() == Report::kMaxPictured) break;
  }
  return odd;
}

}  // namespace stfs
