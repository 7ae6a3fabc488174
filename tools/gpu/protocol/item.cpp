#include "tools/gpu/protocol/item.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/recipe/elements.h"
#include "tools/gpu/device/narrowing.h"
#include "tools/gpu/protocol/open_item.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <utility>

namespace stfs::gpu {
namespace {

// Returns the size of a tensor, or nullopt if the shape does not fit the type or overflows. If a
// dimension is 0, the size is 0 whatever the others are.
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
  if (request_.shape.size() > kSliceMaxRank) {
    refuse("more than " + std::to_string(kSliceMaxRank) + " dimensions");
  }
  const TypeInfo& type = type_info(request_.dtype);
  const std::optional<std::uint64_t> tensor_bytes = bytes_of(type, request_.shape);
  if (!tensor_bytes) {
    refuse("shape " + shape_json(request_.shape) + " overflows 64 bits");
  }
  tensor_bytes_ = *tensor_bytes;
  check_place();
  const std::string expression = request_.slice.empty() ? "..." : request_.slice;
  std::vector<Range> ranges;
  const DType cut_as = request_.as ? DType::kF32 : request_.dtype;
  const std::string refusal = stored_slice_refusal(expression, cut_as, request_.shape);
  if (!refusal.empty()) refuse("slice " + in_quotes(expression) + ": " + refusal);
  parse_ranges(expression, request_.shape, ranges);
  if (slice_of(ranges, type, request_.shape, slice_) != 0) {
    slice_ = elements_of(ranges, request_.shape);
    ranges_ = ranges;
  }
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

  key_ = identity() + "/" + std::string(dtype_name(request_.dtype)) + shape_json(request_.shape) +
         "/" + request_.slice + "/" + std::string(dtype_name(dtype()));
}

void Item::refuse(const std::string& rule) const {
  throw Error(ErrorCode::kUsage, request_.path,
              "tensor " + in_quotes(request_.tensor) + ": " + rule);
}

// Refuses a tensor with bytes outside its file.
void Item::check_place() const {
  std::uint64_t end = 0;
  if (request_.computed) return;  // its file need not hold all of its inputs
  if (__builtin_add_overflow(request_.offset, tensor_bytes_, &end) || end > request_.source_size) {
    refuse("its bytes extend past the end of the file");
  }
}

// Returns the part of the key that identifies the bytes of the whole tensor.
std::string Item::identity() const {
  if (request_.computed) return "computed:" + request_.computed->identity;
  return request_.version + "+" + std::to_string(request_.offset);
}

std::string Item::label() const {
  std::string label = request_.path + "::" + request_.tensor;
  if (!request_.slice.empty()) label += "[" + request_.slice + "]";
  if (request_.computed) {
    label += " computed as " + std::string(dtype_name(request_.dtype)) + " (" +
             request_.computed->scheme + ")";
  }
  if (request_.as) label += " as " + std::string(dtype_name(*request_.as));
  return label;
}

Content Item::whole(const OpenItem& open) const {
  if (!request_.computed) {
    Content content;
    content.extent(*open.source, request_.offset, tensor_bytes_);
    return content;
  }
  const auto number = open.list->find(request_.tensor);
  if (number) {
    const Tensor tensor = open.list->tensor(*number);
    if (tensor.computed != nullptr && tensor.dtype == request_.dtype &&
        std::ranges::equal(tensor.shape, request_.shape) &&
        open.identities->of(tensor) == request_.computed->identity) {
      return tensor.content();
    }
  }
  throw Error(ErrorCode::kUnreadable, request_.path,
              "tensor " + in_quotes(request_.tensor) +
                  ": has changed since the request described it: load it again");
}

Content Item::raw(const OpenItem& open) const {
  if (request_.slice.empty()) return whole(open);
  if (cuts_blocks()) {
    return f32_slice_content(whole(open), request_.dtype, ranges_, request_.shape);
  }
  return slice_content(slice_, whole(open));
}

Content Item::content(const OpenItem& open, ConversionTally* tally) const {
  if (!converts()) return raw(open);
  Content content;
  const DType from = cuts_blocks() ? DType::kF32 : request_.dtype;
  content.production(as_type(raw(open), from, dtype(), elements_, tally));
  return content;
}

}  // namespace stfs::gpu
