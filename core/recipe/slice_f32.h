// A part of a tensor as binary32, for any range of a type that has a conversion: elements that do
// not begin or end at a block's boundary are converted with the rest of their block, and picked.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/slice.h"

#include <cstdint>
#include <memory>
#include <span>

namespace stfs {

// The recipe of a slice, converted: `whole` is the tensor, `ranges` are those of parse_ranges().
// The type has a conversion. Reads only the bytes of the slice where it consists of whole blocks;
// else as as_f32_slice().
Content f32_slice_content(Content whole, DType dtype, std::span<const Range> ranges,
                          std::span<const std::uint64_t> shape);

// `whole` is the tensor; `elements` comes from elements_of() and is not empty. Reads the blocks
// that hold the slice, and the bytes between two of them if they are fewer than a page. Its memory
// does not grow with the number of runs.
std::unique_ptr<const Producer> as_f32_slice(Content whole, const TypeInfo& type, Slice elements);

}  // namespace stfs
