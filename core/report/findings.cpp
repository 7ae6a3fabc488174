#include "core/report/findings.h"

#include "core/base/text.h"

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

constexpr std::size_t kMostNamed = 3;    // tensors in the text of a finding
constexpr std::size_t kMostGroups = 20;  // of equal tensors, with a finding each

std::string number_of(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// `"a", "b", "c" and 9 more`.
std::string some_names(const Report& report, const Positions& tensors) {
  std::string text;
  const std::size_t named = std::min(tensors.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == tensors.size() ? " and " : ", ";
    text += in_quotes(report.tensors[tensors[i]].name);
  }
  if (tensors.size() > named) text += " and " + std::to_string(tensors.size() - named) + " more";
  return text;
}

bool has_fractions(const ReportTensor& tensor) {
  const auto dtype = dtype_from_name(tensor.type);
  if (!dtype) return true;  // a block type of GGUF
  const TypeKind kind = type_info(*dtype).kind;
  return kind == TypeKind::kFloat || kind == TypeKind::kQuantized;
}

// All finite values are one, and there are no others.
bool is_constant(const ValueStats& stats) {
  return stats.count > 1 && stats.min && *stats.min == *stats.max && stats.nan + stats.inf == 0;
}

bool is_all_zero(const ReportTensor& tensor) {
  constexpr std::uint64_t kManyIntegers = 1024;
  const ValueStats& stats = *tensor.stats;
  if (stats.count < 2 || stats.zeros != stats.count) return false;
  if (has_fractions(tensor)) return true;
  const bool is_zero_point = tensor.name.find("zero") != std::string::npos;
  return stats.count >= kManyIntegers && tensor.type != "BOOL" && !is_zero_point;
}

bool has_name_of_scales(std::string_view name) {
  constexpr std::array kEnds = {"_scale",  "_scale_inv", "_scale_2", "_scales",
                                ".scales", ".absmax",    ".SCB"};
  constexpr std::array kOthers = {"logit_scale", "layer_scale"};  // values that a model has learnt
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return std::ranges::any_of(kEnds, ends) && std::ranges::none_of(kOthers, ends);
}

// Why a scale is suspicious; "" for one that is not, and for any other tensor.
std::string suspicion_of(const ReportTensor& tensor) {
  constexpr double kMostRatio = 0x1p24;
  const ValueStats& stats = *tensor.stats;
  // A scale of OCP MX is 2^-127 where a block is zero.
  if (!has_name_of_scales(tensor.name) || !has_fractions(tensor)) return "";
  if (stats.nan > 0) return "NaN";
  if (!stats.min) return "";
  if (*stats.min < 0) return "negative values";
  if (stats.zeros > 0) return "zeros";
  if (tensor.type != "F8_E8M0" && *stats.max > kMostRatio * *stats.min) {
    return "a largest value over 2^24 times the smallest one";
  }
  return "";
}

class Findings {
 public:
  explicit Findings(Report& report) : report_(report) {}

  void add(Finding::Kind kind, std::string text, Positions tensors) {
    report_.findings.push_back({kind, std::move(text), std::move(tensors)});
  }

  // `NaN in 2 tensors: "a" and "b"`, of the tensors that `is_so`.
  void add_where(Finding::Kind kind, const std::string& what,
                 const std::function<bool(const ReportTensor&)>& is_so,
                 std::uint64_t ValueStats::*count = nullptr) {
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
    std::string text = what + " in " + number_of(found.size(), "tensor") + ": ";
    text += some_names(report_, found);
    if (found.size() == 1 && count != nullptr) {
      const ValueStats& stats = *report_.tensors[found.front()].stats;
      text += " (" + std::to_string(stats.*count) + " of " + number_of(stats.count, "value") + ")";
    }
    add(kind, std::move(text), std::move(found));
  }

  void add_unreadable(const std::map<std::uint32_t, std::string>& there) {
    std::map<std::string, Positions> by_reason;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      const std::string& failure = report_.tensors[i].failure;
      if (!failure.empty()) by_reason[failure].push_back(i);
    }
    for (auto& [reason, tensors] : by_reason) {
      add(Finding::Kind::kUnreadable,
          number_of(tensors.size(), "tensor") + " cannot be read: " + some_names(report_, tensors) +
              " (" + reason + ")",
          tensors);
    }
    by_reason.clear();
    for (const auto& [i, reason] : there) by_reason[reason].push_back(i);
    for (auto& [reason, tensors] : by_reason) {
      add(Finding::Kind::kUnreadable,
          number_of(tensors.size(), "tensor") + " of the other checkpoint cannot be read: " +
              some_names(report_, tensors) + " (" + reason + ")",
          tensors);
    }
  }

  void add_missing(std::span<const MissingTensor> missing) {
    if (missing.empty()) return;
    std::string text = number_of(missing.size(), "tensor or part") + " missing: ";
    const std::size_t named = std::min(missing.size(), kMostNamed);
    for (std::size_t i = 0; i < named; ++i) {
      const MissingTensor& one = missing[i];
      text += (i > 0 ? ", " : "") + (one.name ? in_quotes(*one.name) : "all tensors") + " of " +
              in_quotes(one.source);
    }
    if (missing.size() > named) text += " and " + std::to_string(missing.size() - named) + " more";
    add(Finding::Kind::kMissing, std::move(text), {});
  }

  void add_scales() {
    std::map<std::string, Positions> by_suspicion;
    for (std::uint32_t i = 0; i < report_.tensors.size(); ++i) {
      if (!report_.tensors[i].stats) continue;
      std::string suspicion = suspicion_of(report_.tensors[i]);
      if (!suspicion.empty()) by_suspicion[std::move(suspicion)].push_back(i);
    }
    for (auto& [suspicion, tensors] : by_suspicion) {
      add(Finding::Kind::kScale,
          "suspicious scales, with " + suspicion + ", in " + number_of(tensors.size(), "tensor") +
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
    for (auto& [first, group] : by_first) groups.push_back(std::move(group));
    const auto bytes_of = [&](const Positions& group) {
      return report_.tensors[group.front()].bytes * (group.size() - 1);
    };
    std::ranges::stable_sort(groups, std::greater<>(), bytes_of);
    Positions rest;
    std::size_t more = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (i >= kMostGroups) {
        ++more;
        rest.insert(rest.end(), groups[i].begin(), groups[i].end());
        continue;
      }
      add(Finding::Kind::kEqual,
          number_of(groups[i].size(), "tensor") + " with equal bytes (" +
              human_bytes(report_.tensors[groups[i].front()].bytes) +
              " each): " + some_names(report_, groups[i]),
          groups[i]);
    }
    if (more == 0) return;
    add(Finding::Kind::kEqual, number_of(more, "more group") + " of tensors with equal bytes",
        rest);
  }

 private:
  Report& report_;
};

// --- roles

// "model.layers.*.mlp.up_proj.weight"
std::string without_numbers(std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto separates = [](char c) { return c == '.' || c == '/' || c == '_'; };
  std::string role;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    const bool is_number = end > i && (i == 0 || separates(name[i - 1])) &&
                           (end == name.size() || separates(name[end]));
    if (is_number) {
      role += '*';
    } else {
      end = std::max(end, i + 1);
      role += name.substr(i, end - i);
    }
    i = end;
  }
  return role;
}

struct Measures {
  double rms;
  double outlier;  // largest value over std
};

std::optional<Measures> measures_of(const ReportTensor& tensor) {
  if (!tensor.stats || !tensor.stats->min) return std::nullopt;
  const ValueStats& stats = *tensor.stats;
  const double largest = std::max(std::abs(*stats.min), std::abs(*stats.max));
  return Measures{std::hypot(*stats.mean, *stats.std), *stats.std > 0 ? largest / *stats.std : 0};
}

}  // namespace

void add_findings(Report& report, std::span<const MissingTensor> missing,
                  const std::map<std::uint32_t, std::string>& unreadable_there) {
  using Kind = Finding::Kind;
  report.findings.clear();
  Findings findings(report);
  findings.add_unreadable(unreadable_there);
  findings.add_missing(missing);
  findings.add_where(
      Kind::kNan, "NaN", [](const ReportTensor& t) { return t.stats->nan > 0; }, &ValueStats::nan);
  findings.add_where(
      Kind::kInfinity, "infinity", [](const ReportTensor& t) { return t.stats->inf > 0; },
      &ValueStats::inf);
  findings.add_where(Kind::kAllZero, "nothing but zeros", is_all_zero);
  findings.add_scales();
  findings.add_equal();
  findings.add_where(Kind::kConstant, "one value in all elements", [](const ReportTensor& t) {
    return is_constant(*t.stats) && *t.stats->min != 0 && has_fractions(t);
  });
}

std::vector<std::uint32_t> odd_tensors(const Report& report) {
  constexpr std::size_t kFewest = 5;
  constexpr double kFar = 4;
  Positions odd;
  std::unordered_set<std::uint32_t> known;
  const auto add = [&](std::uint32_t i) {
    if (odd.size() < Report::kMostPictured && known.insert(i).second) odd.push_back(i);
  };
  // Takes the tensors of all findings in turn, so that each finding has some.
  for (std::size_t round = 0; round < Report::kMostPictured; ++round) {
    bool has_more = false;
    for (const Finding& finding : report.findings) {
      if (round >= finding.tensors.size()) continue;
      add(finding.tensors[round]);
      has_more = true;
    }
    if (!has_more || odd.size() == Report::kMostPictured) break;
  }
  // By digest: as texts, the roles of a hostile header would take more than its tensors. Where two
  // are taken for one, another tensor is pictured.
  struct Member {
    std::size_t role;
    std::uint32_t tensor;
    auto operator<=>(const Member&) const =
        default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
  };
  std::vector<Member> members;
  for (std::uint32_t i = 0; i < report.tensors.size(); ++i) {
    if (!measures_of(report.tensors[i])) continue;
    members.push_back({std::hash<std::string>()(without_numbers(report.tensors[i].name)), i});
  }
  std::ranges::sort(members);
  Positions outliers;
  Positions tensors;
  for (std::size_t begin = 0; begin < members.size(); begin += tensors.size()) {
    tensors.clear();
    for (std::size_t i = begin; i < members.size() && members[i].role == members[begin].role; ++i) {
      tensors.push_back(members[i].tensor);
    }
    if (tensors.size() < kFewest) continue;
    for (double Measures::*const field : {&Measures::rms, &Measures::outlier}) {
      std::vector<double> values;
      values.reserve(tensors.size());
      for (const std::uint32_t i : tensors)
        values.push_back((*measures_of(report.tensors[i])).*field);
      const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
      std::ranges::nth_element(values, middle);
      for (const std::uint32_t i : tensors) {
        const double value = (*measures_of(report.tensors[i])).*field;
        if (value > kFar * *middle || value * kFar < *middle) outliers.push_back(i);
      }
    }
  }
  std::ranges::sort(outliers);
  std::ranges::for_each(outliers, add);
  return odd;
}

}  // namespace stfs
