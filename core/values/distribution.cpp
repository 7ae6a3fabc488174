#include "core/values/distribution.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

namespace stfs {
namespace {

bool is_integer(const TypeInfo& info) {
  return info.kind == TypeKind::kBool || info.kind == TypeKind::kSigned ||
         info.kind == TypeKind::kUnsigned;
}

// Sets bins that divide the values of a range evenly: for integers, each bin contains the same
// number of integers.
void set_bins(Histogram& histogram, const TypeInfo& info, double low, double high) {
  if (is_integer(info) && high - low < 0x1p50) {
    const double integers = std::floor(high) - std::ceil(low) + 1;
    const double in_bin = std::ceil(integers / static_cast<double>(Histogram::kBins));
    histogram.low = std::ceil(low) - 0.5;
    histogram.high = histogram.low + in_bin * static_cast<double>(Histogram::kBins);
    return;
  }
  if (low == high) {
    const double half = std::max(0.5, std::abs(low) / 1024);
    low -= half;
    high += half;
  }
  constexpr double kMost = DBL_MAX / 4;  // so that high - low is finite
  histogram.low = std::clamp(low, -kMost, kMost);
  histogram.high = std::clamp(high, -kMost, kMost);
}

// Counts the values of a second pass.
class Bins : public ValueSink {
 public:
  Bins(const Histogram& empty, unsigned threads) : histograms_(threads, empty) {}

  void see(std::uint64_t, std::span<const float> values, unsigned thread) override {
    count(values, histograms_[thread]);
  }
  void see(std::uint64_t, std::span<const double> values, unsigned thread) override {
    count(values, histograms_[thread]);
  }

  Histogram sum() const {
    Histogram sum = histograms_.front();
    for (std::size_t i = 1; i < histograms_.size(); ++i) {
      std::ranges::transform(sum.counts, histograms_[i].counts, sum.counts.begin(), std::plus<>());
      sum.below += histograms_[i].below;
      sum.above += histograms_[i].above;
    }
    return sum;
  }

 private:
  template <class T>
  static void count(std::span<const T> values, Histogram& histogram) {
    for (const T value : values) {
      if (std::isfinite(value)) histogram.add(static_cast<double>(value));
    }
  }

  std::vector<Histogram> histograms_;  // by thread
};

}  // namespace

double Histogram::edge(std::size_t bin) const {
  if (bin == kBins) return high;
  return static_cast<double>(bin) * ((high - low) / static_cast<double>(kBins)) + low;
}

void Histogram::add(double value, std::uint64_t count) {
  if (value < low) {
    below += count;
    return;
  }
  if (value > high) {
    above += count;
    return;
  }
  auto bin = static_cast<std::size_t>((value - low) * (static_cast<double>(kBins) / (high - low)));
  bin = std::min(bin, kBins - 1);
  // The product was rounded, so compare with the exact edges.
  if (value < edge(bin)) {
    --bin;
  } else if (bin + 1 < kBins && value >= edge(bin + 1)) {
    ++bin;
  }
  counts[bin] += count;
}

std::vector<std::uint64_t> CellMemory::take(std::size_t cells) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(free_, cells, &std::vector<std::uint64_t>::size);
    if (found != free_.end()) {
      std::vector<std::uint64_t> counts = std::move(*found);
      free_.erase(found);
      return counts;
    }
    free_.reserve(++made_);
  }
  return std::vector<std::uint64_t>(cells);
}

void CellMemory::give_back(std::vector<std::uint64_t> counts) noexcept {
  std::ranges::fill(counts, 0);
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(counts));
}

// Values of BF16 are 2^16 apart in the bits of binary32. If eight cells were used per value, a
// processor's caches would hold only an eighth of the counts.
ValueCells::ValueCells(DType dtype, unsigned threads, CellMemory* memory)
    : dtype_(dtype), shift_(dtype == DType::kBF16 ? 16 : 13), memory_(memory), lanes_(threads) {}

ValueCells::~ValueCells() {
  if (memory_ == nullptr) return;
  for (Lane& lane : lanes_) {
    if (!lane.counts.empty()) memory_->give_back(std::move(lane.counts));
  }
}

float ValueCells::begin_of(std::size_t cell) const {
  return std::bit_cast<float>(static_cast<std::uint32_t>(cell << shift_));
}

std::size_t ValueCells::cell_at(std::size_t position) const {
  const std::size_t half = cell_count() / 2;
  return position < half ? cell_count() - 1 - position : position - half;
}

std::size_t ValueCells::position_of(std::size_t cell) const {
  const std::size_t half = cell_count() / 2;
  return cell < half ? cell + half : cell_count() - 1 - cell;
}

void ValueCells::see(std::uint64_t, std::span<const float> values, unsigned thread) {
  const unsigned shift = shift_;
  const auto cell_of = [shift](float value) {
    return std::bit_cast<std::uint32_t>(value) >> shift;
  };
  auto& [few, counts] = lanes_[thread];
  if (counts.empty()) {
    // Sorting a few cells is less work than clearing and reading all of them.
    if (few.size() + values.size() <= cell_count() / 32) {
      std::ranges::transform(values, std::back_inserter(few), cell_of);
      return;
    }
    counts =
        memory_ == nullptr ? std::vector<std::uint64_t>(cell_count()) : memory_->take(cell_count());
    for (const std::uint32_t cell : few) ++counts[cell];
    few = {};
  }
  std::uint64_t* const cells = counts.data();
  for (const float value : values) ++cells[cell_of(value)];
}

std::vector<ValueCells::Counted> ValueCells::counted() const {
  std::vector<Counted> counted;
  std::vector<std::size_t> few;  // positions
  std::vector<const std::uint64_t*> counts;
  for (const Lane& lane : lanes_) {
    if (!lane.counts.empty()) counts.push_back(lane.counts.data());
    for (const std::uint32_t cell : lane.few) few.push_back(position_of(cell));
  }
  std::ranges::sort(few);
  if (counts.empty()) {
    for (const std::size_t position : few) {
      const std::size_t cell = cell_at(position);
      if (counted.empty() || counted.back().cell != cell) counted.push_back({cell, 0});
      ++counted.back().count;
    }
    return counted;
  }
  auto next = few.begin();
  for (std::size_t position = 0; position < cell_count(); ++position) {
    const std::size_t cell = cell_at(position);
    std::uint64_t count = 0;
    for (const std::uint64_t* const lane : counts) count += lane[cell];
    for (; next != few.end() && *next == position; ++next) ++count;
    if (count > 0) counted.push_back({cell, count});
  }
  return counted;
}

bool exact_in_cells(DType dtype) {
  const TypeInfo& info = type_info(dtype);
  if (info.kind == TypeKind::kFloat) return info.bits() <= 16;
  return is_integer(info) && info.bits() == 8;
}

std::vector<ValueCells::Cell> ValueCells::finite_cells(double min, double max) const {
  const bool is_exact = exact_in_cells(dtype_);
  std::vector<Cell> cells;
  for (const auto& [cell, count] : counted()) {
    const auto begin = static_cast<double>(begin_of(cell));
    if (!std::isfinite(begin)) continue;
    auto end = is_exact ? begin : static_cast<double>(begin_of(cell + 1));
    // The last cell also counts larger doubles.
    if (!std::isfinite(end)) end = std::copysign(DBL_MAX, begin);
    cells.push_back(
        {std::max(std::min(begin, end), min), std::min(std::max(begin, end), max), count});
  }
  return cells;
}

void ValueCells::fill(Distribution& distribution) const {
  const ValueStats& stats = distribution.stats;
  if (!stats.min) return;
  const std::vector<Cell> cells = finite_cells(*stats.min, *stats.max);
  std::uint64_t finite = 0;
  for (const Cell& cell : cells) finite += cell.count;

  std::size_t next = 0;
  std::uint64_t before = 0;  // values in the cells before `next`
  for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
    const auto rank = std::clamp<std::uint64_t>(
        static_cast<std::uint64_t>(std::ceil(kQuantiles[i] * static_cast<double>(finite))), 1,
        finite);
    while (before + cells[next].count < rank) before += cells[next++].count;
    const Cell& cell = cells[next];
    const double share =
        (static_cast<double>(rank - before) - 0.5) / static_cast<double>(cell.count);
    const double value = cell.low + (cell.high - cell.low) * share + 0.0;
    distribution.quantiles[i] = is_integer(type_info(dtype_)) ? std::nearbyint(value) : value;
  }

  // Outliers would put all other values into one bin. Therefore the bins extend beyond the outer
  // quantiles only by half the distance between these quantiles.
  const double middle = distribution.quantiles.back() - distribution.quantiles.front();
  const bool is_cut = middle > 0 && std::isfinite(middle);
  const double low = is_cut ? distribution.quantiles.front() - middle / 2 : *stats.min;
  const double high = is_cut ? distribution.quantiles.back() + middle / 2 : *stats.max;
  distribution.histogram = {};
  set_bins(distribution.histogram, type_info(dtype_), std::max(low, *stats.min),
           std::min(high, *stats.max));
  for (const Cell& cell : cells) {
    distribution.histogram.add(cell.low / 2 + cell.high / 2, cell.count);
  }
}

void ValueCells::fill_both(Distribution& distribution, const ValueCells& other,
                           Histogram& others) const {
  others = distribution.histogram;
  others.counts = {};
  others.below = others.above = 0;
  const std::vector<Cell> theirs = other.finite_cells(-DBL_MAX, DBL_MAX);
  if (theirs.empty()) return;
  Distribution there;
  there.stats.min = theirs.front().low;
  there.stats.max = theirs.back().high;
  other.fill(there);
  Histogram& bins = distribution.histogram;
  // For a type with few values, this distribution's own bins show them best.
  if (!is_integer(type_info(dtype_))) {
    set_bins(bins, type_info(dtype_), std::min(bins.low, there.histogram.low),
             std::max(bins.high, there.histogram.high));
  }
  bins.counts = {};
  bins.below = bins.above = 0;
  others = bins;
  for (const Cell& cell : finite_cells(*distribution.stats.min, *distribution.stats.max)) {
    bins.add(cell.low / 2 + cell.high / 2, cell.count);
  }
  for (const Cell& cell : theirs) others.add(cell.low / 2 + cell.high / 2, cell.count);
}

int value_distribution(const Content& content, DType dtype, const PassOptions& options,
                       Distribution& distribution) {
  const unsigned threads = std::max(1U, options.threads);
  {
    ValueCells cells(dtype, threads);
    if (const int error = value_stats(content, dtype, options, distribution.stats, {&cells})) {
      return error;
    }
    cells.fill(distribution);
  }
  if (exact_in_cells(dtype) || !distribution.stats.min) return 0;
  Histogram empty;
  empty.low = distribution.histogram.low;
  empty.high = distribution.histogram.high;
  Bins bins(empty, threads);
  if (const int error = see_values(content, dtype, options, {&bins})) return error;
  distribution.histogram = bins.sum();
  return 0;
}

}  // namespace stfs
