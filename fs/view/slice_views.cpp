#include "core/recipe/convert.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "core/recipe/slice_f32.h"
#include "fs/view/families.h"
#include "fs/view/tensor_source.h"

namespace stfs {
namespace {

// Fills `slice` and `tensor`: 0, EINVAL or ERANGE.
int parse(const ViewFile& file, Tensor& tensor, Slice& slice) {
  tensor = file.tensor();
  return parse_slice(file.expression, tensor.dtype, tensor.shape, slice);
}

// Fills `ranges`, and `elements` with what they take: 0, EINVAL or ERANGE.
int parse(const ViewFile& file, const Tensor& tensor, std::vector<Range>& ranges, Slice& elements) {
  if (const int error = parse_ranges(file.expression, tensor.shape, ranges)) return error;
  elements = elements_of(ranges, tensor.shape);
  return 0;
}

// Bytes that can be cut out are converted as a whole; what begins or ends inside of a byte is not.
Content floats_of(const Tensor& tensor, const std::vector<Range>& ranges, Slice elements) {
  Slice bytes;
  const std::uint64_t count = elements.size();
  const bool is_whole_bytes = slice_of(ranges, tensor.dtype, tensor.shape, bytes) == 0;
  if (is_whole_bytes && tensor.dtype == DType::kF32) return part(tensor, bytes);
  Content content;
  content.production(is_whole_bytes ? as_f32(part(tensor, bytes), tensor.dtype, count)
                                    : as_f32_slice(raw(tensor), tensor.dtype, std::move(elements)));
  return content;
}

std::string header_of(const Slice& slice, DType dtype) {
  return npy_header(*npy_code(dtype), slice.shape);
}

}  // namespace

bool can_be_sliced(const Tensor& tensor) { return tensor.shape.size() <= kSliceMaxRank; }
bool is_floating_and_can_be_sliced(const Tensor& tensor) {
  return is_floating(tensor) && can_be_sliced(tensor);
}

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

int f32_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  std::vector<Range> ranges;
  Slice elements;
  if (const int error = parse(file, file.tensor(), ranges, elements)) return error;
  bytes = elements.size() * sizeof(float);
  return 0;
}
int make_f32_slice(const ViewFile& file, Content& content) {
  const Tensor tensor = file.tensor();
  std::vector<Range> ranges;
  Slice elements;
  if (const int error = parse(file, tensor, ranges, elements)) return error;
  content = floats_of(tensor, ranges, std::move(elements));
  return 0;
}

int npy_f32_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  std::vector<Range> ranges;
  Slice elements;
  if (const int error = parse(file, file.tensor(), ranges, elements)) return error;
  bytes = header_of(elements, DType::kF32).size() + elements.size() * sizeof(float);
  return 0;
}
int make_npy_f32_slice(const ViewFile& file, Content& content) {
  const Tensor tensor = file.tensor();
  std::vector<Range> ranges;
  Slice elements;
  if (const int error = parse(file, tensor, ranges, elements)) return error;
  content.literal(header_of(elements, DType::kF32));
  content.append(floats_of(tensor, ranges, std::move(elements)));
  return 0;
}

}  // namespace stfs
