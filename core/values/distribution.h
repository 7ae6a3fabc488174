// How the values of a tensor are distributed: statistics, quantiles and a histogram of 128 bins.
//
// Values are counted in cells in the same pass as the statistics. The cell of a value is given by
// the upper 19 bits of its binary32 form, or for BF16 by its 16 bits. For floats of 16 bits or
// fewer, 8-bit integers and BOOL each cell contains a single value, so their quantiles and
// histograms are exact and need no other pass. For any other type the values of a cell differ by
// less than 1 in 1024. For F64 this holds only in the normal range of binary32: larger values share
// the outermost cells, and smaller values share the cells around zero.
//
// Thread safety: value_distribution() may be called from any thread. ValueCells::see() may be
// called as ValueSink says; afterwards const members may be called from any thread.
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

// Bins of equal width over [low, high]; the last bin includes `high`. The counts are equal to the
// counts of numpy.histogram for the values as binary64.
struct Histogram {
  static constexpr std::size_t kBins = 128;

  double low = 0;
  double high = 0;
  std::array<std::uint64_t, kBins> counts{};
  std::uint64_t below = 0;  // finite values less than `low`
  std::uint64_t above = 0;  // finite values greater than `high`

  double edge(std::size_t bin) const;  // the beginning of a bin; for kBins, the end of the last bin
  void add(double value, std::uint64_t count = 1);  // the value must be finite
};

inline constexpr std::array kQuantiles = {0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999};

// All members consider finite values only. If there are no finite values, only `stats` is set.
struct Distribution {
  ValueStats stats;
  Histogram histogram;
  // For each share in kQuantiles, the smallest value v for which at least this share of the values
  // is <= v.
  std::array<double, kQuantiles.size()> quantiles{};
};

// Memory that the ValueCells of many tensors reuse, because getting 4 MiB of new pages takes longer
// than counting the values of most tensors. Thread safety: all members may be called from any
// thread.
class CellMemory {
 public:
  std::vector<std::uint64_t> take(std::size_t cells);  // the counts are all zero
  void give_back(std::vector<std::uint64_t> counts) noexcept;

 private:
  std::mutex mutex_;
  std::size_t made_ = 0;  // vectors made so far; `free_` has capacity for all
  std::vector<std::vector<std::uint64_t>> free_;  // the counts are all zero
};

// Counts the values of a pass in cells. Uses 4 MiB (512 KiB for BF16) for each thread that sees
// more than a few values.
class ValueCells : public ValueSink {
 public:
  // `dtype` is the type of the values. `memory` must outlive the object; null: allocate new memory.
  ValueCells(DType dtype, unsigned threads, CellMemory* memory = nullptr);
  ~ValueCells() override;

  using ValueSink::see;
  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;

  // Sets the quantiles and the histogram. If the type is not exact_in_cells(), the histogram counts
  // each cell in the bin that contains the middle of the cell.
  void fill(Distribution& distribution) const;

  // Extends the bins of `distribution`, which fill() of this object must have set, so that they
  // also show the values of `other`, and sets `others` to the histogram of `other` in the same
  // bins.
  void fill_both(Distribution& distribution, const ValueCells& other, Histogram& others) const;

 private:
  struct Lane {                         // the data of one thread
    std::vector<std::uint32_t> few;     // the cells of the first values
    std::vector<std::uint64_t> counts;  // by cell; empty while there are only a few values
  };
  struct Counted {
    std::size_t cell;
    std::uint64_t count;
  };

  std::size_t cell_count() const { return std::size_t{1} << (32 - shift_); }
  float begin_of(std::size_t cell) const;  // the end of the cell that is nearer to zero
  // Cells in the order of their values: negative values first, from the largest magnitude down.
  std::size_t cell_at(std::size_t position) const;
  std::size_t position_of(std::size_t cell) const;
  std::vector<Counted> counted() const;  // in the order of their values
  struct Cell {
    double low;
    double high;
    std::uint64_t count;
  };
  std::vector<Cell> finite_cells(double min, double max) const;  // cut to [min, max]

  const DType dtype_;
  const unsigned shift_;  // low bits of binary32 that the cells ignore
  CellMemory* const memory_;
  std::vector<Lane> lanes_;
};

// Returns true if each cell contains a single value of this type.
bool exact_in_cells(DType dtype);

// Reads the elements of type `dtype` in `content` once if the type is exact_in_cells(), otherwise
// twice. The errors are the same as for value_stats(). Not for C64.
int value_distribution(const Content& content, DType dtype, const PassOptions& options,
                       Distribution& distribution);

}  // namespace stfs
