#include "core/opened/part.h"
#include "core/recipe/slice.h"
#include "fs/view/families.h"

#include <utility>

namespace stfs {
namespace {

int make_part(const ViewFile& file, PartOptions part, Content& content) {
  part.slice = file.expression;
  PartRecipe recipe;
  if (const int error = part_recipe(file.tensor(), part, recipe)) return error;
  content.append(std::move(recipe.content));
  return 0;
}

}  // namespace

bool can_be_sliced(const Tensor& tensor) { return tensor.shape.size() <= kSliceMaxRank; }
bool is_floating_and_can_be_sliced(const Tensor& tensor) {
  return is_floating(tensor) && can_be_sliced(tensor);
}

int make_slice(const ViewFile& file, Content& content) { return make_part(file, {}, content); }
int make_npy_slice(const ViewFile& file, Content& content) {
  return make_part(file, {.has_npy_header = true}, content);
}
int make_f32_slice(const ViewFile& file, Content& content) {
  return make_part(file, {.as_f32 = true}, content);
}
int make_npy_f32_slice(const ViewFile& file, Content& content) {
  return make_part(file, {.as_f32 = true, .has_npy_header = true}, content);
}

}  // namespace stfs
