#include "tools/gpu/copier/item.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/recipe/slice_f32.h"
#include "tools/gpu/device/narrowing.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stfs::gpu {
namespace {

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (const std::uint64_t dimension : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(dimension);
  }
  return text + "]";
}

// The bytes of a tensor; nothing when no tensor has this shape. An empty dimension makes them 0,
// whatever the others are.
std::optional<std::uint64_t> bytes_of(const TypeInfo& type, std::span<const std::uint64_t> shape) {
  if (std::ranges::find(shape, 0U) != shape.end()) return 0;
  std::uint64_t elements = 1;
  for (const std::uint64_t dimension : shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements)) return std::nullopt;
  }
  return type.bytes_of(elements);
}

}  // namespace

Item::Item(ItemRequest request) : request_(std::move(request)) {
  const auto refuse = [&](const std::string& rule) {
    throw Error(ErrorCode::kUsage, request_.path,
                "tensor " + in_quotes(request_.tensor) + ": " + rule);
  };
  if (request_.shape.size() > kSliceMaxRank) {
    refuse("more than " + std::to_string(kSliceMaxRank) + " dimensions");
  }
  const TypeInfo& type = type_info(request_.dtype);
  const std::optional<std::uint64_t> tensor_bytes = bytes_of(type, request_.shape);
  if (!tensor_bytes) {
    refuse("shape " + shape_text(request_.shape) + " overflows 64 bits");
  }
  tensor_bytes_ = *tensor_bytes;
  std::uint64_t end = 0;
  if (__builtin_add_overflow(request_.offset, tensor_bytes_, &end) || end > request_.source_size) {
    refuse("its bytes end behind the end of the file");
  }
  const std::string expression = request_.slice.empty() ? "..." : request_.slice;
  std::vector<Range> ranges;
  int error = parse_ranges(expression, request_.shape, ranges);
  if (error == 0 && slice_of(ranges, type, request_.shape, slice_) != 0) {
    if (!request_.as) {
      refuse("slice " + in_quotes(expression) + ": begins or ends inside a block of " +
             std::to_string(type.block_elements) + " elements (--as f32 takes any part)");
    }
    slice_ = elements_of(ranges, request_.shape);
    ranges_ = ranges;
  }
  if (error == ERANGE)
    refuse("slice " + in_quotes(expression) + ": index out of bounds (the shape is " +
           shape_text(request_.shape) + ")");
  if (error != 0)
    refuse("slice " + in_quotes(expression) + ": not a slice of this tensor (its shape is " +
           shape_text(request_.shape) + "; as in NumPy, without spaces)");
  request_.slice = canonical_expression(ranges, request_.shape);

  elements_ = cuts_blocks() ? slice_.size() : type.elements_in(slice_.size());
  if (request_.as == request_.dtype) request_.as.reset();
  if (request_.as && !gpu::converts(request_.dtype, *request_.as)) {
    refuse("no conversion from " + std::string(dtype_name(request_.dtype)) + " to " +
           std::string(dtype_name(*request_.as)));
  }
  bytes_ = slice_.size();
  if (request_.as &&
      __builtin_mul_overflow(elements_, type_info(*request_.as).block_bytes, &bytes_)) {
    refuse("the converted tensor would exceed 64 bits");
  }

  key_ = request_.version + "+" + std::to_string(request_.offset) + "/" +
         std::string(dtype_name(request_.dtype)) + shape_text(request_.shape) + "/" +
         request_.slice + "/" + std::string(dtype_name(dtype()));
}

std::string Item::label() const {
  std::string label = request_.path + "::" + request_.tensor;
  if (!request_.slice.empty()) label += "[" + request_.slice + "]";
  if (request_.as) label += " as " + std::string(dtype_name(*request_.as));
  return label;
}

Content Item::raw(const Source& source) const {
  if (request_.slice.empty()) {
    Content content;
    content.extent(source, request_.offset, slice_.size());
    return content;
  }
  Content whole;
  whole.extent(source, request_.offset, tensor_bytes_);
  if (cuts_blocks()) {
    return f32_slice_content(std::move(whole), request_.dtype, ranges_, request_.shape);
  }
  return slice_content(slice_, std::move(whole));
}

Content Item::content(const Source& source, ConversionTally* tally) const {
  if (!converts()) return raw(source);
  Content content;
  const DType from = cuts_blocks() ? DType::kF32 : request_.dtype;
  content.production(as_type(raw(source), from, dtype(), elements_, tally));
  return content;
}

}  // namespace stfs::gpu
