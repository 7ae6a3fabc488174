#include "tools/gpu/protocol/item.h"

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/layer/quantised/layout_text.h"
#include "core/recipe/elements.h"
#include "core/stored/tensor.h"
#include "tools/gpu/device/narrowing.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <span>
#include <utility>

namespace stfs::gpu {
namespace {

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
           shape_json(request_.shape) + ")");
  if (error != 0)
    refuse("slice " + in_quotes(expression) + ": not a slice of this tensor (its shape is " +
           shape_json(request_.shape) + "; as in NumPy, without spaces)");
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

// Refuses bytes outside of the files.
void Item::check_place() const {
  const auto check = [&](std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
    std::uint64_t end = 0;
    if (__builtin_add_overflow(offset, length, &end) || end > size) {
      refuse("its bytes end behind the end of the file");
    }
  };
  if (!request_.computed) return check(request_.offset, tensor_bytes_, request_.source_size);
  if (!std::ranges::count(std::array{DType::kBF16, DType::kF16, DType::kF32}, request_.dtype)) {
    refuse("computed, and not BF16, F16 or F32");
  }
  const Computation& computed = *request_.computed;
  std::array<bool, kRoles> has{};
  for (const Computation::Input& input : computed.inputs) {
    const auto role = static_cast<std::size_t>(input.role);
    if (role >= kRoles || has[role] || input.source > computed.others.size()) {
      refuse("its inputs contradict each other");
    }
    has[role] = true;
    check(input.offset, input.length,
          input.source == 0 ? request_.source_size : computed.others[input.source - 1].size);
  }
}

// The part of a key that identifies the bytes of the whole tensor.
std::string Item::identity() const {
  if (!request_.computed) return request_.version + "+" + std::to_string(request_.offset);
  const Computation& computed = *request_.computed;
  std::string text = computed.scheme + '\0' + layout_text(computed.layout);
  for (const Computation::Input& input : computed.inputs) {
    const std::string& version =
        input.source == 0 ? request_.version : computed.others[input.source - 1].version;
    text += '\0' + version + '+' + std::to_string(input.offset) + ':' +
            std::to_string(input.length) + '/' + std::to_string(static_cast<unsigned>(input.role));
  }
  return "dequantized:" + sha256_hex(text);
}

std::string Item::label() const {
  std::string label = request_.path + "::" + request_.tensor;
  if (!request_.slice.empty()) label += "[" + request_.slice + "]";
  if (request_.computed) {
    label += " dequantized to " + std::string(dtype_name(request_.dtype)) + " (" +
             request_.computed->scheme + ")";
  }
  if (request_.as) label += " as " + std::string(dtype_name(*request_.as));
  return label;
}

std::vector<ItemSource> Item::sources() const {
  std::vector<ItemSource> sources{{request_.path, request_.version, request_.source_size}};
  if (request_.computed) {
    const std::vector<ItemSource>& others = request_.computed->others;
    sources.insert(sources.end(), others.begin(), others.end());
  }
  return sources;
}

Content Item::whole(const OpenItem& open) const {
  Content content;
  if (!request_.computed) {
    content.extent(*open.sources.front(), request_.offset, tensor_bytes_);
    return content;
  }
  const Computation& computed = *request_.computed;
  QuantizedInputs inputs;
  for (const Computation::Input& input : computed.inputs) {
    inputs[static_cast<std::size_t>(input.role)] = {open.sources.at(input.source), input.offset,
                                                    input.length};
  }
  if (!is_computable(computed.layout, inputs)) refuse("its inputs do not fit how it is computed");
  std::unique_ptr<const Producer> values =
      dequantized(computed.layout, inputs, request_.dtype, *open.tiles, open.number);
  if (values->size() != tensor_bytes_) refuse("its shape does not fit how it is computed");
  content.production(std::move(values));
  return content;
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
