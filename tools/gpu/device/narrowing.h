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

// Whether --as takes elements of the first type to the second: any floating one but complex, to
// F32, F16 or BF16.
bool converts(DType from, DType to);

// Converts `count` elements; `in` begins at a block's boundary and holds them whole, `out` has room
// for count elements of `to`. Values are rounded once, to nearest, ties to even. Returns what was
// met.
ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out);

// The elements of `raw`, `count` of them, converted as they are read. Every read adds what it met
// to `tally` when that is given (it outlives the producer): each element once, when every byte is
// read once and reads begin and end at blocks of elements.
std::unique_ptr<const Producer> as_type(Content raw, DType from, DType to, std::uint64_t count,
                                        ConversionTally* tally = nullptr);

}  // namespace stfs::gpu
