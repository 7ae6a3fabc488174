// The data of a report (report.html): plain values that do not depend on a checkpoint. collect.h
// fills them in, and page.h writes them as a page.
//
// Thread safety: not needed, because these are values. Names and paths are bytes from a user or a
// file: they may be hostile, and are not always UTF-8.
#pragma once

#include "core/report/inspect_command.h"
#include "core/values/distribution.h"
#include "core/values/picture/thumbnail.h"
#include "core/values/stats.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

// A value that few tensors of a large report have. If it is absent, it takes only eight bytes. It
// is copied with its owner.
template <class T>
class Rare {
 public:
  Rare() = default;
  Rare(T value) : value_(std::make_unique<T>(std::move(value))) {}
  Rare(const Rare& other) : value_(other ? std::make_unique<T>(*other) : nullptr) {}
  Rare(Rare&&) noexcept = default;
  Rare& operator=(Rare other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  ~Rare() = default;

  bool has_value() const { return value_ != nullptr; }
  explicit operator bool() const { return value_ != nullptr; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  void reset() { value_.reset(); }

 private:
  std::unique_ptr<T> value_;
};

// The difference between a tensor and the tensor of the same name in the other checkpoint
// (--against).
struct Difference {
  enum class Kind { kEqual, kValues, kShape, kType, kAdded };
  Kind kind = Kind::kEqual;  // kType: the types differ; the values are compared nevertheless
  std::string was;           // the type and shape in the other checkpoint, if they differ
  // Only set if the shapes are equal and both tensors have values: |a - b| / |b| in Frobenius
  // norms, where b is the other checkpoint's tensor (nullopt in the same cases as
  // ValueDifference::distance()); the share of equal elements in [0, 1]; and the largest |a - b|.
  // NaN equals NaN. If a value that is not finite differs, there is no distance, and the largest
  // difference is infinite.
  std::optional<double> distance, equal, largest;
};

// A hostile header may have millions of tensors of 30 bytes each, so members that few tensors have
// are Rare.
struct ReportTensor {
  std::string name;
  Rare<std::string> path;  // relative to the mount's root; absent if it equals the name
  std::string_view type;   // the name of the type; in static storage
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;      // a position in Report::files
  std::string_view quantised;  // how its values are stored ("block FP8"), or ""; in static storage
  std::string failure;         // why there are no statistics, or ""
  std::optional<ValueStats> stats;
  // If there are more than kMaxPictured tensors, only tensors in findings have one.
  Rare<Histogram> histogram;
  Rare<std::array<double, kQuantiles.size()>> quantiles;  // set together with `histogram`
  Rare<Thumbnail> thumbnail;                              // set in the same cases as `histogram`
  std::optional<std::uint32_t> equal_to;  // the first tensor with the same type, shape and bytes
  Rare<Difference> difference;            // only set with --against
  // If the values changed: the other checkpoint's, in the bins of `histogram`.
  Rare<Histogram> histogram_before;
};

struct ReportFile {
  std::string name;
  std::uint64_t bytes = 0;
};

// One line in the section about the checkpoint's health. The most severe lines come first.
struct Finding {
  enum class Kind {
    kUnreadable,
    kNan,
    kInfinity,
    kAllZero,
    kConstant,
    kEqual,
    kScale,
    kOutlier,
    kMissing
  };
  enum class Severity {
    kBroken,  // the model cannot work with it
    kOdd,     // the user should check it
    kUsual,   // many models have it, for instance tied embeddings
  };
  Kind kind;
  std::string text;                    // one sentence for a user, printable (text.h)
  std::vector<std::uint32_t> tensors;  // positions in Report::tensors
  Severity severity = Severity::kBroken;
};

struct Report {
  // The maximum number of tensors with a histogram and a thumbnail.
  static constexpr std::size_t kMaxPictured = 2000;
  // The maximum number of tensors in the page's table; the first tensors are shown.
  static constexpr std::size_t kMaxRows = 400'000;

  std::string title;                 // the checkpoint's name
  std::vector<std::string> sources;  // as the user named them, but without secrets
  // How a command names the checkpoint, if it has a single source.
  std::optional<CommandSource> look;
  std::string format;  // "safetensors", "GGUF", or both
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;
  // Properties of the model from its configuration: ("Layers", "32").
  std::vector<std::pair<std::string, std::string>> facts;
  std::optional<bool> ties_embeddings;                        // tie_word_embeddings in config.json
  std::vector<std::pair<std::string, std::string>> metadata;  // long values are cut
  std::vector<ReportFile> files;
  std::vector<ReportTensor> tensors;  // in natural order of their names
  std::vector<Finding> findings;
  // With --against: the name of the other checkpoint, and its tensors that this checkpoint lacks.
  std::optional<std::string> against;
  struct Removed {
    std::string name, type;
    std::vector<std::uint64_t> shape;
    std::uint64_t bytes = 0;
  };
  std::vector<Removed> removed;
};

}  // namespace stfs
