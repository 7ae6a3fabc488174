// Floating-point elements to a type that --as names, on the host.
//
// Thread safety: functions, and those of ConversionTally, may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "tools/gpu/device/device.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

namespace stfs::gpu {

// Counts of the parts of one conversion, which many threads read. A part that is read again, also a
// shorter one, takes the place of the part that began where it does.
class ConversionTally {
 public:
  void set(std::uint64_t offset, const ConversionCounts& counts) {
    const std::lock_guard lock(mutex_);
    parts_[offset] = counts;
  }
  ConversionCounts total() const {
    const std::lock_guard lock(mutex_);
    ConversionCounts sum;
    for (const auto& [offset, counts] : parts_) sum += counts;
    return sum;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, ConversionCounts> parts_;  // by offset in the result
};

// The type with this name: "f32", "f16" or "bf16".
std::optional<DType> conversion_target(std::string_view name);

// Whether --as converts elements of `from` to `to`: from any floating type except complex, to F32,
// F16 or BF16.
bool converts(DType from, DType to);

// Converts `count` elements. `in` holds whole blocks of them; `out` has room for `count` elements
// of `to`. Values are rounded once, to nearest, ties to even. Returns the numbers of NaNs and of
// values out of range.
ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out);

// Converts the `count` elements of `raw` as they are read. Every read sets its counts in `tally`,
// if there is one (it outlives the producer). An element is counted once when all parts are read,
// each from its beginning to that of the next one, and begin at elements.
std::unique_ptr<const Producer> as_type(Content raw, DType from, DType to, std::uint64_t count,
                                        ConversionTally* tally = nullptr);

}  // namespace stfs::gpu
