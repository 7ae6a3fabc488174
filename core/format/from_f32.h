// Rounds binary32 to the types that have a from_f32 in their row (types.h): to nearest, ties to
// even, once. narrow.h has the rules for one value; f32_to_f16 and f32_to_bf16 give the same bits
// with the vectors that the processor has.
//
// Thread safety: the functions may be called from any thread, however it rounds.
#pragma once

#include "core/format/types.h"

#include <cstddef>

namespace stfs {

FromF32 f32_to_f16, f32_to_bf16, f32_to_f8_e4m3, f32_to_f8_e5m2, f32_to_f8_e4m3_fnuz,
    f32_to_f8_e5m2_fnuz, f32_to_f32, f32_to_f64;

// Converts elements of `from`, in whole blocks, to binary32 such that from_f32 of `to` gives the
// stored value rounded once: binary64 is rounded to odd for what is narrower than binary32.
void to_f32_for(const TypeInfo& to, const TypeInfo& from, const std::byte* in, std::size_t count,
                float* out);

}  // namespace stfs
