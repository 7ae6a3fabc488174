// A part of a tensor as binary32, for any range of a type that has a conversion: elements that do
// not begin or end at a block's boundary are converted with the rest of their block, and picked.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/recipe/slice.h"

#include <memory>

namespace stfs {

// `raw` is the whole tensor; `elements` is what elements_of() gave, and not empty. The blocks that
// hold wanted elements are read, and what lies between two of them when that is less than a page.
// Memory does not grow with the number of runs.
std::unique_ptr<const Producer> as_f32_slice(Content raw, const TypeInfo& type, Slice elements);

}  // namespace stfs
