#include "core/recipe/elements.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "fs/view/families.h"

namespace stfs {
namespace {

int make_whole(const ViewFile& file, bool as_f32, bool with_header, Content& content) {
  const Tensor tensor = as_f32 ? file.tensor().valued() : file.tensor();
  if (with_header) {
    const DType dtype = as_f32 ? DType::kF32 : tensor.dtype;
    content.literal(npy_header(type_info(dtype).npy, tensor.shape));
  }
  content.append(as_f32 ? f32_content(tensor.content(), tensor.dtype, tensor.elements())
                        : tensor.content());
  return 0;
}

}  // namespace

bool fits_numpy(const Tensor& tensor) {
  return !type_info(tensor.dtype).npy.empty() && tensor.shape.size() <= kNpyMaxRank;
}
bool is_floating(const Tensor& tensor) { return has_f32(tensor.dtype, tensor.elements()); }
bool is_floating_and_fits_numpy(const Tensor& tensor) {
  return is_floating(tensor) && tensor.shape.size() <= kNpyMaxRank;
}

DType float32(const Tensor&) { return DType::kF32; }

int verify_tensor(const ViewFile& file) { return file.tensor().verify(); }

std::optional<Extent> raw_extent(const ViewFile& file) {
  return file.checkpoint.locator(file.number);
}

int make_raw(const ViewFile& file, Content& content) {
  return make_whole(file, false, false, content);
}
int make_npy(const ViewFile& file, Content& content) {
  return make_whole(file, false, true, content);
}
int make_f32(const ViewFile& file, Content& content) {
  return make_whole(file, true, false, content);
}
int make_npy_f32(const ViewFile& file, Content& content) {
  return make_whole(file, true, true, content);
}

}  // namespace stfs
