// Converts elements to binary32 while they are read.
//
// Thread safety: as_f32() may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>

namespace stfs {

// Whether elements have a form in binary32: they are of a floating type, and their file can have
// its size with a header (a size is a number of 63 bits).
bool has_f32(DType dtype, std::uint64_t count);

// A producer of `count` binary32 values, converted from `raw`, which holds `count` elements of
// `type`. The type has a to_f32 and outlives the producer, as the sources of `raw` do.
std::unique_ptr<const Producer> as_f32(Content raw, const TypeInfo& type, std::uint64_t count);

// The recipe of the same values; `raw` itself if they are binary32 already.
Content f32_content(Content raw, DType dtype, std::uint64_t count);

}  // namespace stfs
