// Converts floating-point elements on the host to a type that --as names.
//
// Thread safety: the functions and the members of ConversionTally may be called from any thread.
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

// The counts of one conversion. Several threads read its parts. If a part is read again, even a
// shorter one, its counts replace the counts of the part with the same offset.
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
  std::map<std::uint64_t, ConversionCounts> parts_;  // by the part's offset in the result, in bytes
};

// Returns the type with this name: "f32", "f16" or "bf16". Returns nullopt for any other name.
std::optional<DType> conversion_target(std::string_view name);

// Returns true if --as can convert elements of `from` to `to`: from any floating type except
// complex types, to F32, F16 or BF16.
bool converts(DType from, DType to);

// Converts `count` elements. `in` holds whole blocks of elements; `out` has room for `count`
// elements of `to`. Values are rounded once, to nearest, ties to even. Returns the number of NaNs
// and the number of finite values that became infinite.
ConversionCounts convert_elements(DType from, DType to, std::uint64_t count,
                                  std::span<const std::byte> in, std::span<std::byte> out);

// Returns a producer that converts the `count` elements of `raw` as they are read. Every read sets
// its counts in `tally`, which may be null and must outlive the producer. The total counts each
// element once if all parts begin at elements and each part ends where the next one begins.
std::unique_ptr<const Producer> as_type(Content raw, DType from, DType to, std::uint64_t count,
                                        ConversionTally* tally = nullptr);

}  // namespace stfs::gpu
