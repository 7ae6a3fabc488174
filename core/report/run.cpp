#include "core/report/run.h"

#include "core/base/text.h"
#include "core/remote/http/url.h"
#include "core/report/collect.h"
#include "core/report/findings.h"
#include "core/values/compare.h"
#include "core/values/picture/markup.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <compare>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kNamedBroken = 3;  // the maximum number of tensors in a sentence
constexpr double kJump = 3;
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

// Returns the last parts of the paths ("step-100"), or the whole names if the last parts are not
// unique.
std::vector<std::string> names_of(std::span<const std::string> sources) {
  std::vector<std::string> names;
  std::set<std::string> different;
  for (const std::string& source : sources) {
    names.push_back(printable(name_of_source(public_name(source))));
    different.insert(names.back());
  }
  if (different.size() == names.size()) return names;
  names.clear();
  for (const std::string& source : sources) names.push_back(printable(public_name(source)));
  return names;
}

RunCell cell_of(const Tensor& tensor, const ValueStats& stats) {
  RunCell cell;
  cell.state = RunCell::State::kThere;
  cell.not_finite = stats.nan + stats.inf;
  cell.is_zero = is_broken_zero(tensor.name, tensor.shape, tensor.dtype, stats);
  cell.rms = stats.min ? static_cast<float>(std::hypot(*stats.mean, *stats.std)) : kNoNumber;
  cell.largest = stats.min
                     ? static_cast<float>(std::max(std::abs(*stats.min), std::abs(*stats.max)))
                     : kNoNumber;
  return cell;
}

class RunCollector {
 public:
  RunCollector(std::span<const Checkpoint* const> versions, const PassOptions& options)
      : versions_(versions), options_(options) {}

  void read(RunTensor& row, unsigned threads) const {
    std::optional<Tensor> first;
    for (std::size_t v = 0; v < versions_.size(); ++v) {
      if (options_.stop.load(std::memory_order_relaxed)) return;
      const auto number = versions_[v]->find(row.name);
      if (!number) continue;
      const Tensor tensor = versions_[v]->tensor(*number);
      row.cells[v] = read(tensor, first ? &*first : nullptr, threads);
      if (!first && row.cells[v].state == RunCell::State::kThere) first = tensor;
    }
  }

 private:
  RunCell read(const Tensor& tensor, const Tensor* first, unsigned threads) const {
    const PassOptions options{
        .stop = options_.stop, .progress = options_.progress, .threads = threads};
    ValueStats stats;
    int error = 0;
    bool is_read = false;
    const auto pass = [&](const std::vector<ValueSink*>& sinks) {
      is_read = true;
      const Tensor values = tensor.valued();
      error = value_stats(values.content(), values.dtype, options, stats, sinks);
      return error;
    };
    float distance = 0;
    const auto is_real = [](DType dtype) { return type_info(dtype).kind != TypeKind::kComplex; };
    if (first != nullptr) {
      distance = kNoNumber;
      if (std::ranges::equal(tensor.shape, first->shape) && is_real(tensor.dtype) &&
          is_real(first->dtype)) {
        const Comparison found = compare_tensors(
            *first, tensor, CompareBy::kValues, {.stop = options_.stop, .threads = threads},
            [&](ValueSink& differences) { return pass({&differences}); });
        const bool has_distance =
            found.values && found.values->unlike == 0 && found.values->distance();
        if (has_distance) distance = static_cast<float>(*found.values->distance());
      }
    }
    if (!is_read) pass({});
    if (error != 0) {
      RunCell cell;
      cell.state = RunCell::State::kUnreadable;
      cell.rms = cell.largest = cell.distance = kNoNumber;
      return cell;
    }
    RunCell cell = cell_of(tensor, stats);
    cell.distance = distance;
    return cell;
  }

  const std::span<const Checkpoint* const> versions_;
  const PassOptions& options_;
};

// Returns the tensors of all versions, with cells that are not filled in yet.
std::vector<RunTensor> rows_of(std::span<const Checkpoint* const> versions) {
  std::map<std::string_view, RunTensor> rows;
  for (const Checkpoint* version : versions) {
    for (std::uint32_t number = 0; number < version->tensor_count(); ++number) {
      const Tensor tensor = version->tensor(number);
      RunTensor& row = rows[tensor.name];
      if (row.cells.empty()) {
        row = {std::string(tensor.name), tensor.elements(), tensor.length, {}};
        row.cells.resize(versions.size());
      }
    }
  }
  std::vector<RunTensor> sorted;
  sorted.reserve(rows.size());
  for (auto& [name, row] : rows) sorted.push_back(std::move(row));
  std::ranges::stable_sort(sorted, [](const RunTensor& a, const RunTensor& b) {
    return std::is_lt(natural_order(a.name, b.name));
  });
  return sorted;
}

}  // namespace

std::size_t RunTensor::broken_at() const {
  bool was_there = false;
  for (std::size_t v = 0; v < cells.size(); ++v) {
    const bool is_there = cells[v].state != RunCell::State::kAbsent;
    if (cells[v].is_broken() || (was_there && !is_there)) return v;
    was_there = is_there;
  }
  return cells.size();
}

std::optional<Run::Break> Run::first_break() const {
  Break found{versions.size(), {}};
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::size_t at = tensors[i].broken_at();
    if (at < found.version) found = {at, {}};
    if (at == found.version) found.tensors.push_back(i);
  }
  return found.version < versions.size() ? std::optional(found) : std::nullopt;
}

std::optional<Run::Jump> Run::largest_jump() const {
  std::optional<Jump> largest;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto& cells = tensors[i].cells;
    for (std::size_t v = 1; v < cells.size(); ++v) {
      if (!(cells[v].rms > 0) || !(cells[v - 1].rms > 0)) continue;
      const double ratio =
          static_cast<double>(cells[v].rms) / static_cast<double>(cells[v - 1].rms);
      if (!std::isfinite(ratio) || std::max(ratio, 1 / ratio) < kJump) continue;
      const auto size = [](double x) { return std::max(x, 1 / x); };
      if (!largest || size(ratio) > size(largest->ratio)) largest = Jump{v, i, ratio};
    }
  }
  return largest;
}

std::string Run::verdict() const {
  const auto broken = first_break();
  if (!broken) {
    return "Nothing broke in " + markup::counted(versions.size(), "version");
  }
  const RunTensor& first = tensors[broken->tensors.front()];
  const RunCell& cell = first.cells[broken->version];
  const std::string what = cell.state == RunCell::State::kAbsent       ? "it lacks"
                           : cell.state == RunCell::State::kUnreadable ? "these cannot be read:"
                           : cell.not_finite > 0                       ? "NaN or infinity in"
                                                                       : "only zeros in";
  std::string text =
      versions[broken->version] +
      (broken->version == 0 ? " is broken already: " : " is the first that is broken: ") + what +
      " ";
  for (std::size_t i = 0; i < std::min(broken->tensors.size(), kNamedBroken); ++i) {
    text += (i > 0 ? ", " : "") + in_quotes(tensors[broken->tensors[i]].name);
  }
  if (broken->tensors.size() > kNamedBroken) {
    text += " and " + markup::grouped(broken->tensors.size() - kNamedBroken) + " more tensors";
  }
  return text;
}

std::vector<std::string> in_order_of_run(std::span<const std::string> sources) {
  std::vector<std::string> order(sources.begin(), sources.end());
  if (std::ranges::is_sorted(order)) {
    std::ranges::stable_sort(order, [](const std::string& a, const std::string& b) {
      return std::is_lt(natural_order(a, b));
    });
  }
  return order;
}

bool are_versions(std::span<const Checkpoint* const> checkpoints) {
  std::set<std::string_view> names;
  for (const Checkpoint* checkpoint : checkpoints) {
    for (std::uint32_t number = 0; number < checkpoint->tensor_count(); ++number) {
      if (!names.insert(checkpoint->name(number)).second) return true;
    }
  }
  return false;
}

int collect_run(std::span<const Checkpoint* const> versions, std::span<const std::string> names,
                const PassOptions& options, Run& run) {
  run.versions = names_of(names);
  run.tensors = rows_of(versions);
  std::vector<std::uint32_t> items(run.tensors.size());
  for (std::uint32_t i = 0; i < items.size(); ++i) items[i] = i;
  const RunCollector collector(versions, options);
  for_each_of(items, options,
              [&](std::uint32_t i, unsigned threads) { collector.read(run.tensors[i], threads); });
  return options.stop.load(std::memory_order_relaxed) ? EINTR : 0;
}

}  // namespace stfs
