// bitsandbytes: 4-bit codes of a table in flat blocks, and INT8 with a scale for each row.
// GPTQModel writes the same under names of its own: X.weight_absmax for X.weight.absmax,
// X.weight_scb for X.SCB.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <utility>

namespace stfs {

bool find_bnb4(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  const auto nf4 = finder.find(tensor.name, ".quant_state.bitsandbytes__nf4");
  const auto fp4 = finder.find(tensor.name, ".quant_state.bitsandbytes__fp4");
  const auto either = finder.find(tensor.name, "_quant_state");
  if (!nf4 && !fp4 && !either) {
    const bool is_half = finder.find(tensor.name, ".absmax").has_value();
    if (is_half) refuse_half(tensor, tensor.name, ".quant_state.bitsandbytes__nf4");
    return false;
  }
  if (tensor.name.ends_with(".weight")) {
    refuse_conv1d(finder, number, tensor, without_ending(tensor.name, ".weight"));
  }
  const std::uint32_t state_number = nf4 ? *nf4 : fp4 ? *fp4 : *either;
  const Tensor state_tensor = finder.tensor(state_number);
  const auto state = parse_quant_state(finder.bytes_of(state_tensor));
  const bool is_known = state && (state->type == "nf4" || state->type == "fp4");
  if (!is_known || (nf4 && (fp4 || state->type != "nf4")) || (fp4 && state->type != "fp4")) {
    refuse_companion(tensor, state_tensor, "its JSON is not that of a quantised weight");
  }
  const auto part = [&](const char* name) {
    return need(finder, tensor, tensor.name, (nf4 || fp4 ? "." : "_") + std::string(name));
  };
  const std::uint32_t scale_number = part("absmax");
  const Tensor absmax = finder.tensor(scale_number);
  const std::uint32_t map_number = part("quant_map");
  const Tensor map = finder.tensor(map_number);
  if (map.dtype != DType::kF32 || map.elements() != 16) refuse_companion(tensor, map);
  QuantizedLayout& layout = found.layout;
  layout.rows = 1;
  layout.columns = 1;
  for (const std::uint64_t dim : state->shape) {
    if (__builtin_mul_overflow(layout.columns, dim, &layout.columns)) {
      refuse_companion(tensor, state_tensor, "the shape that it tells overflows");
    }
  }
  // Weights may be stored as if they were numbers of a wider type.
  const std::uint64_t unit = type_info(tensor.dtype).block_bytes;
  layout.weight = packed_or_refuse(tensor, fields(Codes::kHighFirst, 4), 1, layout.columns, unit);
  if (layout.weight.pitch != tensor.length) {
    refuse_companion(tensor, state_tensor, "the shape that it tells has another size");
  }
  layout.block_columns =
      std::clamp<std::uint64_t>(state->block, 1, std::max<std::uint64_t>(layout.columns, 1));
  layout.grid_rows = 1;
  layout.grid_columns = (layout.columns + layout.block_columns - 1) / layout.block_columns;
  if (absmax.elements() != layout.grid_columns) refuse_companion(tensor, absmax);
  found.name = tensor.name;
  found.shape = state->shape;
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale_number;
  found.input(Role::kMap) = map_number;
  found.input(Role::kState) = state_number;
  const bool is_nested = state->nested_block != 0;
  if (absmax.dtype != (is_nested ? DType::kU8 : DType::kF32)) refuse_companion(tensor, absmax);
  const Packing scale = is_nested ? fields(Codes::kFields, 8) : typed(DType::kF32);
  layout.scale = packed_or_refuse(tensor, scale, 1, layout.grid_columns);
  if (!is_nested) return true;
  layout.nested_block = state->nested_block;
  layout.nested_offset = state->nested_offset;
  for (const auto& [role, name] : {std::pair(Role::kNestedScale, "nested_absmax"),
                                   std::pair(Role::kLevels, "nested_quant_map")}) {
    found.input(role) = part(name);
    const Tensor nested = finder.tensor(found.input(role));
    if (nested.dtype != DType::kF32) refuse_companion(tensor, nested);
  }
  return true;
}

bool find_bnb8(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  if (tensor.dtype != DType::kI8 || !tensor.name.ends_with(".weight")) return false;
  const std::string_view base = without_ending(tensor.name, ".weight");
  auto scale_number = finder.find(base, ".SCB");
  if (!scale_number) scale_number = finder.find(tensor.name, "_scb");
  if (!scale_number) return false;
  refuse_conv1d(finder, number, tensor, base);
  const Tensor scale = finder.tensor(*scale_number);
  if (!has_rank(tensor, 2) || scale.dtype != DType::kF32 || !has_rank(scale, 1) ||
      scale.shape[0] != tensor.shape[0]) {
    refuse_companion(tensor, scale);
  }
  if (const auto format_number = finder.find(base, ".weight_format")) {
    const Tensor format = finder.tensor(*format_number);
    const std::string bytes = finder.bytes_of(format);
    if (std::ranges::any_of(bytes, [](char c) { return c != 0; })) {
      refuse_companion(tensor, format, "weights in another order than by rows are not supported");
    }
    found.others.push_back(*format_number);
  }
  QuantizedLayout& layout = found.layout;
  layout.rows = tensor.shape[0];
  layout.columns = tensor.shape[1];
  layout.weight = packed_or_refuse(tensor, {.codes = Codes::kSigned}, layout.rows, layout.columns);
  layout.grid_rows = layout.rows;
  layout.grid_columns = 1;
  layout.block_columns = std::max<std::uint64_t>(layout.columns, 1);
  layout.scale = packed_or_refuse(tensor, typed(DType::kF32), layout.rows, 1);
  layout.is_divided_by_127 = true;
  found.name = tensor.name;
  found.shape.assign(tensor.shape.begin(), tensor.shape.end());
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = *scale_number;
  return true;
}

}  // namespace stfs
