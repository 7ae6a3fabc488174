// The elements of a tensor in another floating type, rounded once from the stored value to nearest,
// ties to even. A value that is too large becomes what ml_dtypes makes of it: infinity, or NaN
// in the types of 8 bits without an infinity.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>

namespace stfs {

// `raw` is a tensor of `elements` elements of `from`, which has a to_f32; `to` is another type,
// with a from_f32.
std::unique_ptr<const Producer> cast(Content raw, DType from, DType to, std::uint64_t elements);

}  // namespace stfs
