#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "core/recipe/slice_f32.h"
#include "fs/view/families.h"

namespace stfs {
namespace {

// A file's expression, parsed for its tensor.
struct ParsedSlice {
  Tensor tensor;
  std::vector<Range> ranges;
  Slice elements;
  Slice bytes;
};

// Fills all of `parsed` except `bytes`. Returns 0, EINVAL or ERANGE.
int parse_elements(const ViewFile& file, ParsedSlice& parsed) {
  parsed.tensor = file.tensor();
  if (const int error = parse_ranges(file.expression, parsed.tensor.shape, parsed.ranges)) {
    return error;
  }
  parsed.elements = elements_of(parsed.ranges, parsed.tensor.shape);
  return 0;
}
// Fills `parsed`. Also returns EINVAL if the slice begins or ends inside a byte.
int parse_bytes(const ViewFile& file, ParsedSlice& parsed) {
  if (const int error = parse_elements(file, parsed)) return error;
  return slice_of(parsed.ranges, type_info(parsed.tensor.dtype), parsed.tensor.shape, parsed.bytes);
}

Content floats_of(const ParsedSlice& parsed) {
  const Tensor& tensor = parsed.tensor;
  return f32_slice_content(tensor.content(), tensor.dtype, parsed.ranges, tensor.shape);
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
  ParsedSlice parsed;
  if (const int error = parse_bytes(file, parsed)) return error;
  bytes = parsed.bytes.size();
  return 0;
}
int make_slice(const ViewFile& file, Content& content) {
  ParsedSlice parsed;
  if (const int error = parse_bytes(file, parsed)) return error;
  content = slice_content(parsed.bytes, parsed.tensor.content());
  return 0;
}

int npy_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  ParsedSlice parsed;
  if (const int error = parse_bytes(file, parsed)) return error;
  bytes = header_of(parsed.bytes, parsed.tensor.dtype).size() + parsed.bytes.size();
  return 0;
}
int make_npy_slice(const ViewFile& file, Content& content) {
  ParsedSlice parsed;
  if (const int error = parse_bytes(file, parsed)) return error;
  content.literal(header_of(parsed.bytes, parsed.tensor.dtype));
  content.append(slice_content(parsed.bytes, parsed.tensor.content()));
  return 0;
}

int f32_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  ParsedSlice parsed;
  if (const int error = parse_elements(file, parsed)) return error;
  bytes = parsed.elements.size() * sizeof(float);
  return 0;
}
int make_f32_slice(const ViewFile& file, Content& content) {
  ParsedSlice parsed;
  if (const int error = parse_elements(file, parsed)) return error;
  content = floats_of(parsed);
  return 0;
}

int npy_f32_slice_size(const ViewFile& file, std::uint64_t& bytes) {
  ParsedSlice parsed;
  if (const int error = parse_elements(file, parsed)) return error;
  bytes = header_of(parsed.elements, DType::kF32).size() + parsed.elements.size() * sizeof(float);
  return 0;
}
int make_npy_f32_slice(const ViewFile& file, Content& content) {
  ParsedSlice parsed;
  if (const int error = parse_elements(file, parsed)) return error;
  content.literal(header_of(parsed.elements, DType::kF32));
  content.append(floats_of(parsed));
  return 0;
}

}  // namespace stfs
