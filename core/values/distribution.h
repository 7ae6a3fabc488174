// How the values of a tensor are distributed: statistics, quantiles and a histogram of 128 bins.
//
// Values are counted in cells by the upper 19 bits of binary32, of BF16 by its 16 bits, in the same
// pass as the statistics: each cell of a float of 16 bits or fewer, of an 8-bit integer and of BOOL
// is one value, so their quantiles and histograms need no other pass and are exact. A cell of any
// other type holds values that differ by less than 1 in 1024, of F64 only in the normal range of
// binary32: larger values share the outermost cells, and smaller ones those about zero.
//
// Thread safety: value_distribution() may be called from any thread. ValueCells: see() as ValueSink
// says, then const members from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/values/pass.h"
#include "core/values/stats.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace stfs {

// Bins of equal width over [low, high], the last one closed, with the counts of numpy.histogram on
// the values as binary64.
struct Histogram {
  static constexpr std::size_t kBins = 128;

  double low = 0;
  double high = 0;
  std::array<std::uint64_t, kBins> counts{};
  std::uint64_t below = 0;  // finite values outside of the bins
  std::uint64_t above = 0;

  double edge(std::size_t bin) const;  // where it begins; of kBins, where the last one ends
  void add(double value, std::uint64_t count = 1);  // finite
};

inline constexpr std::array kQuantiles = {0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999};

// All parts are about finite values. Without any, only `stats` is set.
struct Distribution {
  ValueStats stats;
  Histogram histogram;
  // For each share in kQuantiles, the least value that this share of the values does not exceed.
  std::array<double, kQuantiles.size()> quantiles{};
};

// Memory for ValueCells of many tensors: to get 4 MiB of new pages takes longer than to count the
// values of most tensors. Thread safety: all members.
class CellMemory {
 public:
  std::vector<std::uint64_t> take(std::size_t cells);  // all zero
  void give_back(std::vector<std::uint64_t> counts) noexcept;

 private:
  std::mutex mutex_;
  std::size_t made_ = 0;                          // for each of which `free_` has room
  std::vector<std::vector<std::uint64_t>> free_;  // all zero
};

// Counts the values of a pass in cells. Has 4 MiB, of BF16 512 KiB, for each thread that sees more
// than a few values.
class ValueCells : public ValueSink {
 public:
  // Of values of this type. `memory` outlives it; null: new memory.
  ValueCells(DType dtype, unsigned threads, CellMemory* memory = nullptr);
  ~ValueCells() override;

  using ValueSink::see;
  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;

  // Sets quantiles and histogram. The histogram of a type that is not exact_in_cells() puts each
  // cell into the bin of its middle.
  void fill(Distribution& distribution) const;

  // Puts both in bins that show all of `other` too; sets its histogram. Needs fill() of
  // `distribution` from this.
  void fill_both(Distribution& distribution, const ValueCells& other, Histogram& others) const;

 private:
  struct Lane {                         // of a thread
    std::vector<std::uint32_t> few;     // the cells of its first values
    std::vector<std::uint64_t> counts;  // by cell; empty while there are few
  };
  struct Counted {
    std::size_t cell;
    std::uint64_t count;
  };

  std::size_t cell_count() const { return std::size_t{1} << (32 - shift_); }
  float begin_of(std::size_t cell) const;  // the end nearer to zero
  // The order of values: negative ones from the largest magnitude down.
  std::size_t cell_at(std::size_t position) const;
  std::size_t position_of(std::size_t cell) const;
  std::vector<Counted> counted() const;  // in the order of their values
  struct Cell {
    double low;
    double high;
    std::uint64_t count;
  };
  std::vector<Cell> finite_cells(double min, double max) const;  // cut at these

  const DType dtype_;
  const unsigned shift_;  // bits of binary32 that cells do not tell apart
  CellMemory* const memory_;
  std::vector<Lane> lanes_;
};

bool exact_in_cells(DType dtype);

// Reads the elements of type `dtype` in `content` once if they are exact_in_cells(), else twice.
// The errors are those of value_stats(). Not for C64.
int value_distribution(const Content& content, DType dtype, const PassOptions& options,
                       Distribution& distribution);

}  // namespace stfs
