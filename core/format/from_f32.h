// Rounds binary32 to the types that have a from_f32 in their row (types.h): to nearest, ties to
// even, once. narrow.h has the rules for one value. f32_to_f16 and f32_to_bf16 follow the same
// rules with vector instructions of the processor.
//
// Thread safety: the functions may be called from any thread, whatever the thread's rounding mode
// is (ieee.h).
#pragma once

#include "core/format/types.h"

#include <cstddef>

namespace stfs {

FromF32 f32_to_f16, f32_to_bf16, f32_to_f8_e4m3, f32_to_f8_e5m2, f32_to_f8_e4m3_fnuz,
    f32_to_f8_e5m2_fnuz, f32_to_f32, f32_to_f64;

// Converts `count` elements of `from`, in whole blocks, to binary32 in such a way that from_f32 of
// `to` then gives the stored value rounded only once: if `from` is F64 and `to` is narrower than
// binary32, the values are rounded to odd (to_odd_f32()).
void to_f32_for(const TypeInfo& to, const TypeInfo& from, const std::byte* in, std::size_t count,
                float* out);

}  // namespace stfs
