// The data of a report (report.html): plain values, without a checkpoint behind them. collect.h
// fills them in, page.h writes them as a page.
//
// Thread safety: none needed; these are values. Names and paths are bytes of a user or of a file:
// not always UTF-8, and hostile.
#pragma once

#include "core/report/look.h"
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

// A value that few tensors of a large report have: where there is none, it takes eight bytes. It is
// copied with its owner.
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

// How a tensor differs from that of the same name in the other checkpoint (--against).
struct Difference {
  enum class Kind { kEqual, kValues, kShape, kType, kAdded };
  Kind kind = Kind::kEqual;  // kType: another type; its values are compared all the same
  std::string was;           // type and shape in the other one, where these differ
  // Only where the shapes are equal and both have values: |a - b| / |b|, in Frobenius norms (b is
  // the other one's; nullopt as ValueDifference::distance() is), the share of equal elements in
  // [0, 1], and the largest |a - b|. NaN equals NaN. Where a value that is not finite differs,
  // there is no distance, and the largest is infinite.
  std::optional<double> distance, equal, largest;
};

// A hostile header has millions of tensors, of 30 bytes each: what few of them have is Rare.
struct ReportTensor {
  std::string name;
  Rare<std::string> path;  // in the mount, relative to its root, where it is not the name
  std::string_view type;   // the name of the type, of static storage
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;      // a position in Report::files
  std::string_view quantised;  // how its values are stored ("block FP8"), or empty; static storage
  std::string failure;         // why there are no statistics, or empty
  std::optional<ValueStats> stats;
  Rare<Histogram> histogram;  // beyond kMostPictured tensors only of the odd ones
  Rare<std::array<double, kQuantiles.size()>> quantiles;  // with `histogram`
  Rare<Thumbnail> thumbnail;                              // as `histogram`
  std::optional<std::uint32_t> equal_to;  // the first tensor with the same type, shape and bytes
  Rare<Difference> difference;            // with --against
  Rare<Histogram> histogram_before;       // of changed values: in the bins of `histogram`
};

struct ReportFile {
  std::string name;
  std::uint64_t bytes = 0;
};

// One line of the health part. The worst comes first.
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
    kBroken,  // no model works with it
    kOdd,     // somebody should look
    kUsual,   // what many models have, such as tied embeddings
  };
  Kind kind;
  std::string text;                    // one sentence for a user, printable (text.h)
  std::vector<std::uint32_t> tensors;  // positions in Report::tensors
  Severity severity = Severity::kBroken;
};

struct Report {
  static constexpr std::size_t kMostPictured = 2000;  // tensors with a histogram and a thumbnail
  static constexpr std::size_t kMostRows = 400'000;   // tensors in the page's table: the first

  std::string title;                  // the checkpoint's name
  std::vector<std::string> sources;   // as the user named them, without secrets
  std::optional<CommandSource> look;  // what a command names to show values, where one source does
  std::string format;                 // "safetensors", "GGUF", or both
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;
  // What the model is, by its configuration: ("Layers", "32").
  std::vector<std::pair<std::string, std::string>> facts;
  std::optional<bool> ties_embeddings;                        // tie_word_embeddings of config.json
  std::vector<std::pair<std::string, std::string>> metadata;  // long values are cut
  std::vector<ReportFile> files;
  std::vector<ReportTensor> tensors;  // in natural order of their names
  std::vector<Finding> findings;
  // With --against: the other checkpoint's name, and its tensors that this one lacks.
  std::optional<std::string> against;
  struct Removed {
    std::string name, type;
    std::vector<std::uint64_t> shape;
    std::uint64_t bytes = 0;
  };
  std::vector<Removed> removed;
};

}  // namespace stfs
