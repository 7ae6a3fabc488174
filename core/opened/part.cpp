#include "core/opened/part.h"

#include "core/base/text.h"
#include "core/recipe/elements.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"

#include <cerrno>
#include <utility>

namespace stfs {

int part_recipe(const Tensor& tensor, const PartOptions& part, PartRecipe& recipe) {
  const Tensor from = part.as_f32 ? tensor.valued() : tensor;
  if (part.as_f32 && !has_f32(from.dtype, from.elements())) return EINVAL;
  recipe.dtype = part.as_f32 ? DType::kF32 : from.dtype;
  Content bytes;
  if (!part.slice) {
    bytes = part.as_f32 ? f32_content(from.content(), from.dtype, from.elements()) : from.content();
    recipe.shape.assign(from.shape.begin(), from.shape.end());
  } else {
    std::vector<Range> ranges;
    if (const int error = parse_ranges(*part.slice, from.shape, ranges)) return error;
    if (part.as_f32) {
      bytes = f32_slice_content(from.content(), from.dtype, ranges, from.shape);
    } else {
      Slice slice;
      const int error = slice_of(ranges, type_info(from.dtype), from.shape, slice);
      if (error != 0) return error;
      bytes = slice_content(slice, from.content());
    }
    recipe.shape = elements_of(ranges, from.shape).shape;
  }
  if (part.has_npy_header) {
    const std::string_view code = type_info(recipe.dtype).npy;
    if (code.empty() || recipe.shape.size() > kNpyMaxRank) return EINVAL;
    recipe.content.literal(npy_header(code, recipe.shape));
  }
  recipe.content.append(std::move(bytes));
  return 0;
}

std::string part_refusal(const Tensor& tensor, const PartOptions& part) {
  const Tensor from = part.as_f32 ? tensor.valued() : tensor;
  const TypeInfo& type = type_info(from.dtype);
  const std::string name(type.name);
  if (part.as_f32 && type.to_f32 == nullptr)
    return name + " is not a floating-point type: omit f32";
  if (part.as_f32 && !has_f32(from.dtype, from.elements())) {
    return "float32 values would exceed 63 bits: omit f32";
  }
  if (part.slice) {
    const std::string rule =
        stored_slice_refusal(*part.slice, part.as_f32 ? DType::kF32 : from.dtype, from.shape);
    if (!rule.empty()) return "slice " + in_quotes(*part.slice) + ": " + rule;
  }
  if (type_info(part.as_f32 ? DType::kF32 : from.dtype).npy.empty()) {
    return "NumPy has no type for " + name + (type.to_f32 != nullptr ? ": use f32" : "");
  }
  return "NumPy has at most " + std::to_string(kNpyMaxRank) + " dimensions: omit its header";
}

}  // namespace stfs
