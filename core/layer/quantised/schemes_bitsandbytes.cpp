// bitsandbytes: flat blocks of 4-bit codes of a table, and INT8 with one scale per row. GPTQModel
// stores the same under its own names: X.weight_absmax for X.weight.absmax, X.weight_scb for X.SCB.
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <utility>

namespace stfs {

bool find_bnb4(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  const auto nf4 = weight.find(tensor.name, ".quant_state.bitsandbytes__nf4");
  const auto fp4 = weight.find(tensor.name, ".quant_state.bitsandbytes__fp4");
  const auto either = weight.find(tensor.name, "_quant_state");
  if (!nf4 && !fp4 && !either) {
    const bool is_half = weight.find(tensor.name, ".absmax").has_value();
    if (is_half) weight.refuse_half(tensor.name, ".quant_state.bitsandbytes__nf4");
    return false;
  }
  if (tensor.name.ends_with(".weight")) weight.refuse_conv1d(weight.module());
  const Companion about = nf4 ? *nf4 : fp4 ? *fp4 : *either;
  const auto state = parse_quant_state(weight.finder.bytes_of(about));
  const bool is_known = state && (state->type == "nf4" || state->type == "fp4");
  if (!is_known || (nf4 && (fp4 || state->type != "nf4")) || (fp4 && state->type != "fp4")) {
    weight.refuse(about, "its JSON does not describe a quantised weight");
  }
  const auto part = [&](const char* name) {
    return weight.need(tensor.name, (nf4 || fp4 ? "." : "_") + std::string(name));
  };
  const Companion absmax = part("absmax");
  const Companion map = part("quant_map");
  if (map.dtype != DType::kF32 || map.elements() != 16) weight.refuse(map);
  std::uint64_t columns = 1;
  for (const std::uint64_t dim : state->shape) {
    if (__builtin_mul_overflow(columns, dim, &columns)) {
      weight.refuse(about, "the shape that it gives overflows");
    }
  }
  // The codes may be stored with a wider type, so the size is rounded up to whole elements of that
  // type.
  weight.set_codes(fields(Codes::kHighFirst, 4), {.columns = columns},
                   type_info(tensor.dtype).block_bytes);
  QuantizedLayout& layout = weight.found.layout;
  if (layout.weight.pitch != tensor.length) {
    weight.refuse(about, "the shape that it gives has another size");
  }
  const std::uint64_t block =
      std::clamp<std::uint64_t>(state->block, 1, std::max<std::uint64_t>(columns, 1));
  weight.set_grid(1, (columns + block - 1) / block, 1, block);
  const bool is_nested = state->nested_block != 0;
  if (absmax.elements() != layout.grid_columns ||
      absmax.dtype != (is_nested ? DType::kU8 : DType::kF32)) {
    weight.refuse(absmax);
  }
  weight.set_result(tensor.name, state->shape);
  weight.take(Role::kMap, map);
  weight.take(Role::kState, about);
  weight.take_on_grid(Role::kScale, absmax,
                      is_nested ? fields(Codes::kFields, 8) : typed(DType::kF32));
  if (!is_nested) return true;
  layout.nested_block = state->nested_block;
  layout.nested_offset = state->nested_offset;
  for (const auto& [role, name] : {std::pair(Role::kNestedScale, "nested_absmax"),
                                   std::pair(Role::kLevels, "nested_quant_map")}) {
    const Companion nested = part(name);
    weight.take(role, nested);
    if (nested.dtype != DType::kF32) weight.refuse(nested);
  }
  return true;
}

bool find_bnb8(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (tensor.dtype != DType::kI8 || !tensor.name.ends_with(".weight")) return false;
  const std::string_view base = weight.module();
  auto scale = weight.find(base, ".SCB");
  if (!scale) scale = weight.find(tensor.name, "_scb");
  if (!scale) return false;
  weight.refuse_conv1d(base);
  if (!has_rank(tensor, 2) || scale->dtype != DType::kF32 || !has_rank(*scale, 1) ||
      scale->shape[0] != tensor.shape[0]) {
    weight.refuse(*scale);
  }
  if (const auto format = weight.find(base, ".weight_format")) {
    const std::string bytes = weight.finder.bytes_of(*format);
    if (std::ranges::any_of(bytes, [](char c) { return c != 0; })) {
      weight.refuse(*format, "only weights in the order of their rows are supported");
    }
    weight.found.others.push_back(format->number);
  }
  const Matrices stored = matrices_of(tensor.shape);
  weight.set_codes({.codes = Codes::kSigned}, stored);
  weight.set_grid(stored.rows, 1, 1, stored.columns);
  weight.take_on_grid(Role::kScale, *scale, typed(DType::kF32));
  weight.found.layout.is_divided_by_127 = true;
  weight.set_result(tensor.name, tensor.shape);
  return true;
}

}  // namespace stfs
