#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "fs/view/families.h"
#include "fs/view/tensor_source.h"

namespace stfs {
namespace {

// Fills `slice` and `tensor`: 0, EINVAL or ERANGE.
int parse(const ViewFile& file, Tensor& tensor, Slice& slice) {
  tensor = file.tensor();
  return parse_slice(file.expression, tensor.dtype, tensor.shape, slice);
}

std::string header_of(const Slice& slice, DType dtype) {
  return npy_header(*npy_code(dtype), slice.shape);
}

}  // namespace

bool can_be_sliced(const Tensor& tensor) { return tensor.shape.size() <= kSliceMaxRank; }
int slice_size(const ViewFile& file, std::uint64_t& bytes) {
  Tensor tensor;
  Slice slice;
  if (const int error = parse(file, tensor, slice)) return error;
  bytes = slice.size();
  return 0;
}
int make_slice(const ViewFile& file, Content& content) {
  Tensor tensor;
  Slice slice;
  if (const int error = parse(file, tensor, slice)) return error;
  content = part(tensor, slice);
  return 0;
}

int npy_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  Tensor tensor;
  Slice slice;
  if (const int error = parse(file, tensor, slice)) return error;
  bytes = header_of(slice, tensor.dtype).size() + slice.size();
  return 0;
}
int make_npy_slice(const ViewFile& file, Content& content) {
  Tensor tensor;
  Slice slice;
  if (const int error = parse(file, tensor, slice)) return error;
  content.literal(header_of(slice, tensor.dtype)).append(part(tensor, slice));
  return 0;
}

}  // namespace stfs
