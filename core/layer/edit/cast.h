// Casts the elements of a tensor to another floating type. Each stored value is rounded once, to
// the nearest value, ties to even. A value that is too large becomes the same value as in
// ml_dtypes: infinity, or NaN in the 8-bit types without an infinity.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>

namespace stfs {

// Returns a producer of the elements as type `to`. `raw` holds the bytes of `elements` elements of
// type `from`. `from` must have a to_f32, and `to` a from_f32; the types must differ.
std::unique_ptr<const Producer> cast(Content raw, DType from, DType to, std::uint64_t elements);

}  // namespace stfs
