#include "core/recipe/convert.h"
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

// If the slice consists of whole bytes, cut these out and convert them; else convert whole blocks
// and pick elements.
Content floats_of(ParsedSlice parsed) {
  const Tensor& tensor = parsed.tensor;
  const std::uint64_t count = parsed.elements.size();
  const bool is_whole_bytes =
      slice_of(parsed.ranges, type_info(tensor.dtype), tensor.shape, parsed.bytes) == 0;
  if (is_whole_bytes && tensor.dtype == DType::kF32)
    return slice_content(parsed.bytes, tensor.content());
  Content content;
  content.production(
      is_whole_bytes
          ? as_f32(slice_content(parsed.bytes, tensor.content()), type_info(tensor.dtype), count)
          : as_f32_slice(tensor.content(), type_info(tensor.dtype), std::move(parsed.elements)));
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
  content = floats_of(std::move(parsed));
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
  content.append(floats_of(std::move(parsed)));
  return 0;
}

}  // namespace stfs
