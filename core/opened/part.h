// A part of a tensor that mounts, commands and libraries can ask for: a slice, values in float32, a
// NumPy file, or a combination of these.
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
  std::optional<std::string_view> slice = {};  // core/recipe/slice.h; nullopt: the whole tensor
  bool as_f32 = false;                         // the values (Tensor::valued()) as float32
  bool has_npy_header = false;                 // put the header of a NumPy file before the bytes
};

struct PartRecipe {
  Content content;
  DType dtype;  // the type and the shape of the part
  std::vector<std::uint64_t> shape;
};

// Fills `recipe`. Returns 0; EINVAL if the tensor has no such part; ERANGE for an index outside of
// its dimension.
int part_recipe(const Tensor& tensor, const PartOptions& part, PartRecipe& recipe);

// Returns why part_recipe() returns an error, as the rule of a message. Call it only after an
// error.
std::string part_refusal(const Tensor& tensor, const PartOptions& part);

}  // namespace stfs
