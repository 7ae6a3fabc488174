// ComfyUI's NVFP4 and MXFP8: the scales lie in the tiles of cuBLAS, and FP4 has the first code of a
// byte in the high bits. Its FP8 and INT8 are those of schemes_scaled.cpp.
#include "core/base/text.h"
#include "core/layer/quantised/layer_texts.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>

namespace stfs {
namespace {

constexpr std::string_view kMark = ".comfy_quant";

// ComfyUI pads weights, and the bias alone tells how many rows are values.
void refuse_padded(const Finder& finder, const Tensor& weight, std::string_view layer) {
  const auto number = finder.list().find(std::string(layer) + ".bias");
  if (!number) return;
  const Tensor bias = finder.tensor(*number);
  if (bias.shape.empty() || bias.shape.back() == weight.shape[weight.shape.size() - 2]) return;
  refuse_companion(weight, bias, "the weight is padded to more rows, which is not supported");
}

void add_factor(const Finder& finder, const Tensor& weight, QuantizedWeight& found) {
  const std::uint32_t number = need(finder, weight, weight.name, "_scale_2");
  const Tensor factor = finder.tensor(number);
  const bool is_of_matrix = factor.elements() != 1;
  if (factor.dtype != DType::kF32 || (is_of_matrix && factor.elements() != found.layout.matrices)) {
    refuse_companion(weight, factor);
  }
  found.input(Role::kFactor) = number;
  found.layout.factor_is_of_matrix = is_of_matrix;
}

}  // namespace

bool find_comfy(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                QuantizedWeight& found) {
  const bool is_fp4 = tensor.dtype == DType::kU8;
  if (!is_fp4 && tensor.dtype != DType::kF8E4M3) return false;
  if (!finder.has_layers_of_comfy(number) || !tensor.name.ends_with(".weight")) return false;
  const auto scale_number = finder.find(tensor.name, "_scale");
  if (!scale_number || (!has_rank(tensor, 2) && !has_rank(tensor, 3))) return false;
  const std::string_view layer = without_ending(tensor.name, ".weight");
  const Tensor scale = finder.tensor(*scale_number);
  const auto about = finder.layer_of_comfy(number, layer);
  const std::string_view format = about ? std::string_view(about->format) : "";
  if (format != "nvfp4" && format != "mxfp8") {
    if (!about && (is_fp4 || scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0)) {
      Finder::refuse(tensor, "the texts of ComfyUI name the formats of other weights, not its own");
    }
    return false;
  }
  const bool is_nvfp4 = format == "nvfp4";
  const DType type = is_nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0;
  if (is_nvfp4 != is_fp4 || (scale.dtype != type && scale.dtype != DType::kU8)) {
    refuse_companion(tensor, scale, "these are no types of " + std::string(format));
  }
  if (is_nvfp4) refuse_of_modelopt_for_comfy(finder, number, tensor);
  refuse_padded(finder, tensor, layer);
  const Matrices stored = matrices_of(tensor.shape);
  const std::uint64_t group = is_nvfp4 ? 16 : 32;
  QuantizedLayout& layout = found.layout;
  layout.matrices = stored.matrices;
  layout.rows = stored.rows;
  layout.columns = stored.columns;
  if (is_nvfp4 && __builtin_mul_overflow(stored.columns, 2, &layout.columns)) {
    Finder::refuse(tensor, "its size overflows");
  }
  if (layout.columns % group != 0) {
    refuse_companion(tensor, scale, "the columns are no multiple of " + std::to_string(group));
  }
  layout.block_columns = group;
  layout.grid_rows = layout.rows;
  layout.grid_columns = layout.columns / group;
  const Packing codes = is_nvfp4 ? Packing{.codes = Codes::kF4HighFirst} : typed(tensor.dtype);
  layout.weight = packed_or_refuse(tensor, codes, layout.rows, layout.columns);
  layout.scale = packed_or_refuse(tensor, {.codes = Codes::kTiles, .type = type}, layout.grid_rows,
                                  layout.grid_columns);
  found.name = tensor.name;
  found.shape = with_last(tensor.shape, layout.columns);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = *scale_number;
  if (const auto mark = finder.find(layer, kMark)) found.others.push_back(*mark);
  if (is_nvfp4) add_factor(finder, tensor, found);
  add_column_scale(finder, tensor, layer, ".pre_quant_scale", found);
  return true;
}

}  // namespace stfs
