#include "core/recipe/elements.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "fs/view/families.h"

namespace stfs {
namespace {

// Returns the errors of parse_ranges(), and EINVAL if stored elements begin or end inside a byte.
int make_part(const ViewFile& file, bool as_f32, bool with_header, Content& content) {
  const Tensor tensor = as_f32 ? file.tensor().valued() : file.tensor();
  std::vector<Range> ranges;
  if (const int error = parse_ranges(file.expression, tensor.shape, ranges)) return error;
  Slice bytes;
  const int cut = slice_of(ranges, type_info(tensor.dtype), tensor.shape, bytes);
  if (cut != 0 && !as_f32) return cut;
  if (with_header) {
    const DType dtype = as_f32 ? DType::kF32 : tensor.dtype;
    content.literal(npy_header(type_info(dtype).npy, bytes.shape));
  }
  content.append(as_f32 ? f32_slice_content(tensor.content(), tensor.dtype, ranges, tensor.shape)
                        : slice_content(bytes, tensor.content()));
  return 0;
}

}  // namespace

bool can_be_sliced(const Tensor& tensor) { return tensor.shape.size() <= kSliceMaxRank; }
bool is_floating_and_can_be_sliced(const Tensor& tensor) {
  return is_floating(tensor) && can_be_sliced(tensor);
}

int make_slice(const ViewFile& file, Content& content) {
  return make_part(file, false, false, content);
}
int make_npy_slice(const ViewFile& file, Content& content) {
  return make_part(file, false, true, content);
}
int make_f32_slice(const ViewFile& file, Content& content) {
  return make_part(file, true, false, content);
}
int make_npy_f32_slice(const ViewFile& file, Content& content) {
  return make_part(file, true, true, content);
}

}  // namespace stfs
