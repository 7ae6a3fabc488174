// A part of a tensor, as mounts, commands and libraries name it: a slice, values in float32, a
// NumPy file.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"
#include "core/stored/tensor.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct PartOptions {
  std::optional<std::string_view> slice = {};  // core/recipe/slice.h; none: the whole tensor
  bool as_f32 = false;          // its values, which another tensor may scale, as float32
  bool has_npy_header = false;  // before the bytes
};

struct PartRecipe {
  Content content;
  DType dtype;
  std::vector<std::uint64_t> shape;
};

// Fills `recipe`. Returns 0, or EINVAL for a part that cannot be had, or ERANGE for an index
// outside of its dimension.
int part_recipe(const Tensor& tensor, const PartOptions& part, PartRecipe& recipe);

// Why part_recipe() returns an error: the rule of a message.
std::string part_refusal(const Tensor& tensor, const PartOptions& part);

}  // namespace stfs
