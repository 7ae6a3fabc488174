#include "core/recipe/convert.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "core/recipe/slice_f32.h"
#include "fs/view/families.h"

namespace stfs {
namespace {

// What the expression of a file takes of its tensor.
struct Taken {
  Tensor tensor;
  std::vector<Range> ranges;
  Slice elements;
  Slice bytes;
};

// Fills `taken` but for its bytes: 0, EINVAL or ERANGE.
int take_elements(const ViewFile& file, Taken& taken) {
  taken.tensor = file.tensor();
  if (const int error = parse_ranges(file.expression, taken.tensor.shape, taken.ranges)) {
    return error;
  }
  taken.elements = elements_of(taken.ranges, taken.tensor.shape);
  return 0;
}
// EINVAL too when elements begin or end inside of a byte.
int take_bytes(const ViewFile& file, Taken& taken) {
  if (const int error = take_elements(file, taken)) return error;
  return slice_of(taken.ranges, type_info(taken.tensor.dtype), taken.tensor.shape, taken.bytes);
}

// Bytes that can be cut out are converted as a whole; of others, the blocks that they are in.
Content floats_of(Taken taken) {
  const Tensor& tensor = taken.tensor;
  const std::uint64_t count = taken.elements.size();
  const bool is_whole_bytes =
      slice_of(taken.ranges, type_info(tensor.dtype), tensor.shape, taken.bytes) == 0;
  if (is_whole_bytes && tensor.dtype == DType::kF32)
    return slice_content(taken.bytes, tensor.content());
  Content content;
  content.production(
      is_whole_bytes
          ? as_f32(slice_content(taken.bytes, tensor.content()), type_info(tensor.dtype), count)
          : as_f32_slice(tensor.content(), type_info(tensor.dtype), std::move(taken.elements)));
  return content;
}

std::string header_of(const Slice& slice, DType dtype) {
  return npy_header(type_info(dtype).npy, slice.shape);
}

}  // namespace

bool can_be_sliced(const Tensor& tensor) { return tensor.shape.size() <= kSliceMaxRank; }
bool is_floating_and_can_be_sliced(const Tensor& tensor) {
  return is_floating(tensor) && can_be_sliced(tensor);
}

int slice_size(const ViewFile& file, std::uint64_t& bytes) {
  Taken taken;
  if (const int error = take_bytes(file, taken)) return error;
  bytes = taken.bytes.size();
  return 0;
}
int make_slice(const ViewFile& file, Content& content) {
  Taken taken;
  if (const int error = take_bytes(file, taken)) return error;
  content = slice_content(taken.bytes, taken.tensor.content());
  return 0;
}

int npy_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  Taken taken;
  if (const int error = take_bytes(file, taken)) return error;
  bytes = header_of(taken.bytes, taken.tensor.dtype).size() + taken.bytes.size();
  return 0;
}
int make_npy_slice(const ViewFile& file, Content& content) {
  Taken taken;
  if (const int error = take_bytes(file, taken)) return error;
  content.literal(header_of(taken.bytes, taken.tensor.dtype));
  content.append(slice_content(taken.bytes, taken.tensor.content()));
  return 0;
}

int f32_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  Taken taken;
  if (const int error = take_elements(file, taken)) return error;
  bytes = taken.elements.size() * sizeof(float);
  return 0;
}
int make_f32_slice(const ViewFile& file, Content& content) {
  Taken taken;
  if (const int error = take_elements(file, taken)) return error;
  content = floats_of(std::move(taken));
  return 0;
}

int npy_f32_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  Taken taken;
  if (const int error = take_elements(file, taken)) return error;
  bytes = header_of(taken.elements, DType::kF32).size() + taken.elements.size() * sizeof(float);
  return 0;
}
int make_npy_f32_slice(const ViewFile& file, Content& content) {
  Taken taken;
  if (const int error = take_elements(file, taken)) return error;
  content.literal(header_of(taken.elements, DType::kF32));
  content.append(floats_of(std::move(taken)));
  return 0;
}

}  // namespace stfs
