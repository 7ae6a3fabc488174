#include "core/report/collect.h"

#include "core/base/posix.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/opened/read_failure.h"
#include "core/remote/http/url.h"
#include "core/report/facts.h"
#include "core/report/findings.h"
#include "core/values/compare.h"
#include "core/values/digest.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kMaxMetadata = 500;  // entries
constexpr std::size_t kMaxText = 400;      // bytes of a value of the metadata

// --- The part of the report that needs no bytes of tensors

std::string cut(std::string text) {
  if (text.size() <= kMaxText) return text;
  text.resize(utf8_floor(text, kMaxText));
  return text + "...";
}

std::string title_of(const Checkpoint& checkpoint) {
  for (const auto& [key, text] : checkpoint.metadata()) {
    if (key == "general.name" && !text.empty()) return cut(std::string(text));
  }
  return name_of_source(checkpoint.origins().front());
}

std::string formats_of(const Checkpoint& checkpoint) {
  std::set<std::string_view> names;
  for (const Part& part : checkpoint.parts()) names.insert(part.format->name);
  std::string text;
  for (const std::string_view name : names) {
    text.append(text.empty() ? "" : ", ").append(name);
  }
  return text;
}

// Returns the numbers of all tensors, in the natural order of their names.
std::vector<std::uint32_t> in_natural_order(const Checkpoint& checkpoint) {
  std::string keys;
  std::vector<std::size_t> ends;
  ends.reserve(checkpoint.tensor_count());
  for (std::uint32_t number = 0; number < checkpoint.tensor_count(); ++number) {
    append_natural_key(keys, checkpoint.name(number));
    keys += '\0';
    keys += checkpoint.name(number);  // orders names that differ only in leading zeros
    ends.push_back(keys.size());
  }
  return sorted_order(ends.size(),
                      [&](std::uint32_t number) {
                        const std::size_t begin = number == 0 ? 0 : ends[number - 1];
                        return std::string_view(keys).substr(begin, ends[number] - begin);
                      })
      .order;
}

// Returns the source for the commands that the report shows. Returns nullopt if more than one
// source is mounted, or if a layer is a URL.
std::optional<CommandSource> source_of_command(const Checkpoint& checkpoint,
                                               std::span<const std::string> sources) {
  if (sources.size() != 1 || checkpoint.origins().size() != 1) return std::nullopt;
  const auto is_url = [](const Layer& layer) {
    return layer.argument.find("://") != std::string::npos;
  };
  if (std::ranges::any_of(checkpoint.layers(), is_url)) return std::nullopt;
  return CommandSource{public_name(sources.front()), checkpoint.layers()};
}

ReportTensor described(const Checkpoint& checkpoint, std::uint32_t number) {
  const Tensor tensor = checkpoint.tensor(number);
  ReportTensor shown;
  shown.name = tensor.name;
  if (tensor.path != tensor.name) shown.path = std::string(tensor.path);
  shown.type = dtype_name(tensor.dtype);
  shown.shape.assign(tensor.shape.begin(), tensor.shape.end());
  shown.elements = tensor.elements();
  shown.bytes = tensor.length;
  shown.file = checkpoint.list().row(number).part;
  if (tensor.computed != nullptr) shown.quantised = tensor.computed->scheme();
  return shown;
}

// Returns a report with everything that is in the headers.
Report described(const Checkpoint& checkpoint, std::span<const std::string> sources,
                 std::span<const std::uint32_t> order) {
  Report report;
  report.title = title_of(checkpoint);
  for (const std::string& source : sources) report.sources.push_back(public_name(source));
  report.look = source_of_command(checkpoint, sources);
  report.format = formats_of(checkpoint);
  const Totals totals = totals_of(checkpoint);
  report.parameters = totals.all.parameters;
  report.bytes = totals.all.bytes;
  const std::size_t items = std::min<std::size_t>(checkpoint.metadata_count(), kMaxMetadata);
  for (std::uint32_t i = 0; i < items; ++i) {
    const MetadataItem item = checkpoint.metadata_item(i);
    report.metadata.emplace_back(cut(std::string(item.key)), cut(shown_value(item)));
  }
  for (const Part& part : checkpoint.parts()) {
    report.files.push_back({part.label, part.source->version().size});
  }
  report.tensors.reserve(order.size());
  for (const std::uint32_t number : order) report.tensors.push_back(described(checkpoint, number));
  return report;
}

std::string type_and_shape(const Tensor& tensor) {
  return cut(std::string(dtype_name(tensor.dtype)) + " " + shape_json(tensor.shape));
}

bool has_values(DType dtype) { return type_info(dtype).kind != TypeKind::kComplex; }

// --- The pass over the bytes

using Sinks = std::vector<ValueSink*>;

// Gathers a picture and the distribution of a tensor's values.
class Picture {
 public:
  Picture(const Tensor& tensor, unsigned threads, CellMemory& memory, Sinks& sinks)
      : cells_(tensor.dtype, threads, &memory), pixels_(tensor.shape) {
    sinks.push_back(&cells_);
    sinks.push_back(&pixels_);
  }

  // Adds the results to `shown`. `before` has the values of the other checkpoint; it may be null.
  void fill(ReportTensor& shown, const ValueCells* before = nullptr) const {
    shown.thumbnail = pixels_.thumbnail(*shown.stats);
    if (!shown.stats->min) return;
    Distribution distribution;
    distribution.stats = *shown.stats;
    cells_.fill(distribution);
    if (before != nullptr) {
      Histogram others;
      cells_.fill_both(distribution, *before, others);
      shown.histogram_before = others;
    }
    shown.histogram = distribution.histogram;
    shown.quantiles = distribution.quantiles;
  }

 private:
  ValueCells cells_;
  ThumbnailPixels pixels_;
};

class Collector {
 public:
  Collector(const Checkpoint& checkpoint, const Checkpoint* against, const PassOptions& options,
            std::span<const std::uint32_t> order, Report& report)
      : checkpoint_(checkpoint),
        against_(against),
        options_(options),
        order_(order),
        report_(report) {
    // Read in the order of the bytes, which is fastest on disks and networks.
    by_place_.resize(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) by_place_[i] = i;
    std::ranges::sort(by_place_, {}, [&](std::uint32_t i) { return order_[i]; });
  }

  int run() {
    const bool pictures_all = order_.size() <= Report::kMaxPictured;
    for_tensors(by_place_,
                [&](std::uint32_t i, unsigned threads) { read(i, threads, pictures_all); });
    find_equal();
    add_findings(report_, checkpoint_.missing(), unreadable_there_);
    if (!pictures_all) {
      std::vector<std::uint32_t> odd = odd_tensors(report_);
      std::ranges::sort(odd, {}, [&](std::uint32_t i) { return order_[i]; });
      for_tensors(odd, [&](std::uint32_t i, unsigned threads) { read_picture(i, threads); });
      // Add the findings about tensors whose reads have just failed.
      add_findings(report_, checkpoint_.missing(), unreadable_there_);
    }
    return is_stopped() ? EINTR : 0;
  }

 private:
  bool is_stopped() const { return options_.stop.load(std::memory_order_relaxed); }

  void for_tensors(std::span<const std::uint32_t> items,
                   const std::function<void(std::uint32_t, unsigned)>& work) {
    for_each_of(items, options_, work);
  }

  // Computes the statistics of a tensor, its pictures if `with_pictures` is true, and the
  // difference from the other checkpoint.
  void read(std::uint32_t i, unsigned threads, bool with_pictures) {
    const Tensor tensor = checkpoint_.tensor(order_[i]);
    ReportTensor& shown = report_.tensors[i];
    const PassOptions options{options_.stop, options_.progress, threads};
    Sinks sinks;
    std::optional<Picture> picture;
    if (with_pictures && has_values(tensor.dtype) && shown.elements > 0) {
      picture.emplace(tensor, threads, memory_, sinks);
    }
    ValueStats stats;
    int error = 0;
    bool is_read = false;
    const auto pass = [&] {
      is_read = true;
      const Tensor values = tensor.valued();
      error = value_stats(values.content(), values.dtype, options, stats, sinks);
      return error;
    };
    std::optional<ValueCells> before;
    if (against_ != nullptr) {
      const auto number = against_->find(tensor.name);
      if (picture && number) before.emplace(against_->tensor(*number).dtype, threads, &memory_);
      const auto pass_with = [&](ValueSink& differences) {
        sinks.push_back(&differences);
        return pass();
      };
      compare(i, tensor, options, pass_with, before ? &*before : nullptr);
    }
    if (!shown.failure.empty()) return;
    if (!is_read) pass();
    if (error != 0) return fail(i, error);
    shown.stats = stats;
    const bool differs = shown.difference && shown.difference->equal.value_or(1) < 1;
    if (picture) picture->fill(shown, differs && before ? &*before : nullptr);
  }

  // Records that a tensor cannot be read. The report then shows the failure and no numbers.
  void fail(std::uint32_t i, int error) {
    if (is_stopped()) return;
    ReportTensor& shown = report_.tensors[i];
    shown.failure = read_failure(sources_of(checkpoint_.tensor(order_[i])), "", error).message();
    shown.stats.reset();
    shown.histogram.reset();
    shown.thumbnail.reset();
    shown.histogram_before.reset();
    shown.equal_to.reset();
  }

  void fail_there(std::uint32_t i, const Tensor& other, int error) {
    if (is_stopped()) return;
    const std::lock_guard lock(mutex_);
    unreadable_there_.emplace(i, read_failure(sources_of(other), "", error).message());
  }

  void read_picture(std::uint32_t i, unsigned threads) {
    const Tensor tensor = checkpoint_.tensor(order_[i]);
    ReportTensor& shown = report_.tensors[i];
    if (!shown.stats || !has_values(tensor.dtype) || shown.elements == 0) return;
    Sinks sinks;
    Picture picture(tensor, threads, memory_, sinks);
    const PassOptions options{.stop = options_.stop, .threads = threads};
    const Tensor values = tensor.valued();
    if (const int error = see_values(values.content(), values.dtype, options, sinks)) {
      fail(i, error);
    } else {
      picture.fill(shown);
    }
  }

  // Sets the difference from the other checkpoint's tensor. If shapes and types do not decide it,
  // compares the values or the bytes of both tensors in one pass.
  void compare(std::uint32_t i, const Tensor& tensor, const PassOptions& options,
               const std::function<int(ValueSink&)>& pass, ValueSink* values_of_before) {
    using Kind = Difference::Kind;
    ReportTensor& shown = report_.tensors[i];
    shown.difference = Difference{Kind::kAdded, {}, {}, {}, {}};
    const auto number = against_->find(tensor.name);
    if (!number) return;
    const Tensor other = against_->tensor(*number);
    Difference& difference = *shown.difference;
    const bool has_equal_shape = std::ranges::equal(tensor.shape, other.shape);
    const bool has_equal_type = tensor.dtype == other.dtype;
    difference.kind = !has_equal_shape  ? Kind::kShape
                      : !has_equal_type ? Kind::kType
                                        : Kind::kEqual;
    if (difference.kind != Kind::kEqual) difference.was = type_and_shape(other);
    const bool by_values = has_values(tensor.dtype) && has_values(other.dtype);
    if (!has_equal_shape || (!by_values && !has_equal_type)) {
      if (options.progress) options.progress(other.length);
      return;
    }
    const Comparison found =
        compare_tensors(other, tensor, by_values ? CompareBy::kValues : CompareBy::kBytes, options,
                        pass, values_of_before);
    const bool may_differ = found.error != 0 || found.differs();
    if (may_differ && difference.kind == Kind::kEqual) difference.kind = Kind::kValues;
    if (found.error != 0) {
      return found.is_in_before ? fail_there(i, other, found.error) : fail(i, found.error);
    }
    if (!found.values) return;
    difference.equal = found.values->equal_share();
    if (found.values->unlike > 0) {
      difference.largest = std::numeric_limits<double>::infinity();
    } else {
      difference.distance = found.values->distance();
      difference.largest = found.values->largest;
    }
  }

  // Finds tensors with equal bytes. Tensors with equal statistics may have equal bytes, or the same
  // values in another order. So only these tensors are read again, each once, and their digests are
  // compared.
  void find_equal() {
    using Key = std::tuple<std::string_view, const std::vector<std::uint64_t>&, double, double,
                           double, double, std::uint64_t, std::uint64_t, std::uint64_t>;
    const auto key_of = [&](std::uint32_t i) {
      const ReportTensor& tensor = report_.tensors[i];
      const ValueStats& stats = *tensor.stats;
      return Key(tensor.type, tensor.shape, stats.min.value_or(0), stats.max.value_or(0),
                 stats.mean.value_or(0), stats.std.value_or(0), stats.zeros, stats.nan, stats.inf);
    };
    std::vector<std::uint32_t> sorted;
    for (const std::uint32_t i : by_place_) {
      if (report_.tensors[i].stats && report_.tensors[i].elements > 0) sorted.push_back(i);
    }
    std::ranges::stable_sort(sorted, {}, key_of);
    std::vector<std::uint32_t> candidates;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      const bool is_like_last = i > 0 && key_of(sorted[i - 1]) == key_of(sorted[i]);
      const bool is_like_next = i + 1 < sorted.size() && key_of(sorted[i]) == key_of(sorted[i + 1]);
      if (is_like_last || is_like_next) candidates.push_back(sorted[i]);
    }
    std::ranges::sort(candidates, {}, [&](std::uint32_t i) { return order_[i]; });
    struct Digest {
      std::array<char, 64> hex;
      std::uint32_t at;  // a position in the report
    };
    std::vector<Digest> digests;
    digests.reserve(candidates.size());
    for_tensors(candidates, [&](std::uint32_t i, unsigned) {
      std::string hex;
      const Tensor tensor = checkpoint_.tensor(order_[i]);
      if (const int error = sha256(tensor.content(), options_.stop, hex)) {
        fail(i, error);
        return;
      }
      const std::lock_guard lock(mutex_);
      std::ranges::copy(hex, digests.emplace_back(Digest{{}, i}).hex.begin());
    });
    const auto bytes_of = [&](const Digest& digest) {
      const ReportTensor& tensor = report_.tensors[digest.at];
      return std::tuple<const std::array<char, 64>&, std::string_view,
                        const std::vector<std::uint64_t>&>(digest.hex, tensor.type, tensor.shape);
    };
    std::ranges::sort(digests, [&](const Digest& a, const Digest& b) {
      const auto order = bytes_of(a) <=> bytes_of(b);
      return std::is_eq(order) ? a.at < b.at : std::is_lt(order);
    });
    const Digest* first = nullptr;  // the first of several tensors with equal bytes
    for (const Digest& digest : digests) {
      if (first != nullptr && bytes_of(*first) == bytes_of(digest)) {
        report_.tensors[digest.at].equal_to = first->at;
      } else {
        first = &digest;
      }
    }
  }

  const Checkpoint& checkpoint_;
  const Checkpoint* const against_;
  const PassOptions& options_;
  const std::span<const std::uint32_t> order_;  // a tensor's number by its position in the report
  Report& report_;
  CellMemory memory_;
  std::vector<std::uint32_t> by_place_;  // positions
  std::mutex mutex_;
  // Failures of reading tensors of the other checkpoint, by position.
  std::map<std::uint32_t, std::string> unreadable_there_;
};

}  // namespace

std::string name_of_source(std::string_view path) {
  // The Hub's own cache: models--ORG--NAME/snapshots/COMMIT.
  constexpr std::string_view kModels = "models--";
  const std::size_t model = path.find(kModels);
  const std::size_t end_of_model = path.find("/snapshots/", model);
  if (model != std::string_view::npos && end_of_model != std::string_view::npos) {
    const std::size_t begin = model + kModels.size();
    std::string name(path.substr(begin, end_of_model - begin));
    if (const std::size_t dashes = name.find("--"); dashes != std::string::npos) {
      name.replace(dashes, 2, "/");
    }
    return cut(std::move(name));
  }
  std::string title;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::size_t slash = rest.rfind('/');
    title = rest.substr(slash + 1);  // npos + 1 is 0
    rest = rest.substr(0, slash == std::string_view::npos ? 0 : slash);
    for (const std::string_view end :
         {".json", ".index", ".safetensors", ".gguf", ".bin", ".pt", ".npz"}) {
      if (title.ends_with(end)) title.resize(title.size() - end.size());
    }
    const bool is_shard = title.starts_with("model-0");
    if (!title.empty() && title != "model" && !is_shard) break;
  }
  return title.empty() ? "checkpoint" : cut(std::move(title));
}

void for_each_of(std::span<const std::uint32_t> items, const PassOptions& options,
                 const std::function<void(std::uint32_t, unsigned)>& work) {
  const unsigned threads = std::max(1U, options.threads);
  std::atomic<std::size_t> next = 0;
  on_threads(std::min<std::size_t>(threads, items.size()), [&](std::size_t) {
    try {
      for (std::size_t i;
           (i = next++) < items.size() && !options.stop.load(std::memory_order_relaxed);) {
        const std::size_t left = std::min<std::size_t>(items.size() - i, threads);
        work(items[i], static_cast<unsigned>(threads / left));
      }
    } catch (...) {
      next = items.size();
      throw;
    }
  });
}

int collect_report(const Checkpoint& checkpoint, const Checkpoint* against,
                   std::span<const std::string> sources, const PassOptions& options,
                   Report& report) {
  const std::vector<std::uint32_t> order = in_natural_order(checkpoint);
  report = described(checkpoint, sources, order);
  add_facts(checkpoint, options.stop, report);
  if (against != nullptr) {
    report.against = title_of(*against);
    for (const std::uint32_t number : in_natural_order(*against)) {
      const Tensor tensor = against->tensor(number);
      if (checkpoint.find(tensor.name)) continue;
      report.removed.push_back({std::string(tensor.name),
                                std::string(dtype_name(tensor.dtype)),
                                {tensor.shape.begin(), tensor.shape.end()},
                                tensor.length});
    }
  }
  return Collector(checkpoint, against, options, order, report).run();
}

}  // namespace stfs
