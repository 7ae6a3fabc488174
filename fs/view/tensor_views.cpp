#include "core/recipe/convert.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "fs/view/families.h"

namespace stfs {
namespace {

std::string header_of(const Tensor& tensor, DType dtype) {
  return npy_header(type_info(dtype).npy, tensor.shape);
}

Content floats_of(const Tensor& tensor) {
  return f32_content(tensor.content(), tensor.dtype, tensor.elements());
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

int raw_size(const ViewFile& file, std::uint64_t& bytes) {
  bytes = file.tensor().length;
  return 0;
}
int make_raw(const ViewFile& file, Content& content) {
  content = file.tensor().content();
  return 0;
}

std::optional<Extent> raw_extent(const ViewFile& file) {
  return file.checkpoint.locator(file.number);
}

int npy_size(const ViewFile& file, std::uint64_t& bytes) {
  const Tensor tensor = file.tensor();
  bytes = header_of(tensor, tensor.dtype).size() + tensor.length;
  return 0;
}
int make_npy(const ViewFile& file, Content& content) {
  const Tensor tensor = file.tensor();
  content.literal(header_of(tensor, tensor.dtype)).append(tensor.content());
  return 0;
}

int f32_size(const ViewFile& file, std::uint64_t& bytes) {
  bytes = file.tensor().elements() * sizeof(float);
  return 0;
}
int make_f32(const ViewFile& file, Content& content) {
  content = floats_of(file.tensor());
  return 0;
}

int npy_f32_size(const ViewFile& file, std::uint64_t& bytes) {
  const Tensor tensor = file.tensor();
  bytes = header_of(tensor, DType::kF32).size() + tensor.elements() * sizeof(float);
  return 0;
}
int make_npy_f32(const ViewFile& file, Content& content) {
  const Tensor tensor = file.tensor();
  content.literal(header_of(tensor, DType::kF32)).append(floats_of(tensor));
  return 0;
}

}  // namespace stfs
