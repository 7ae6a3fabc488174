// Floating-point elements to a type that --as names, on the host.
//
// Thread safety: functions, and ConversionTally::add, may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "tools/gpu/device/device.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stfs::gpu {

// Counts that many threads add to.
class ConversionTally {
 public:
  void add(const ConversionCounts& counts) {
    out_of_range_.fetch_add(counts.out_of_range, std::memory_order_relaxed);
    nan_.fetch_add(counts.nan, std::memory_order_relaxed);
  }
  ConversionCounts total() const { return {out_of_range_.load(), nan_.load()}; }

 private:
  std::atomic<std::uint64_t> out_of_range_ = 0;
  std::atomic<std::uint64_t> nan_ = 0;
};

// Whether --as converts elements of `from` to `to`: from any floating type except complex, to F32,
// F16 or BF16.
bool converts(DType from, DType to);

// Converts `count` elements. `in` holds whole blocks of them; `out` has room for `count` elements
// of `to`. Values are rounded once, to nearest, ties to even. Returns the numbers of NaNs and of
// values out of range.
ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out);

// Converts the `count` elements of `raw` as they are read. Every read adds its counts to `tally`,
// if there is one (it outlives the producer). An element is counted once when every byte is read
// once and reads begin and end at blocks of elements.
std::unique_ptr<const Producer> as_type(Content raw, DType from, DType to, std::uint64_t count,
                                        ConversionTally* tally = nullptr);

}  // namespace stfs::gpu
