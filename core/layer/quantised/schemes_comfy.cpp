// ComfyUI's NVFP4, MXFP8, and INT4 of AWQ. The scales of NVFP4 and MXFP8 are in the tiles of
// cuBLAS, and FP4 has the first code of a byte in the high bits. ComfyUI's FP8 and INT8 are handled
// in schemes_scaled.cpp.
#include "core/layer/quantised/layer_texts.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

// Refuses a weight that ComfyUI has padded. Only the bias shows how many rows contain values.
void refuse_padded(const Candidate& weight) {
  const auto number = weight.finder.list().find(std::string(weight.module()) + ".bias");
  if (!number) return;
  const Tensor bias = weight.finder.tensor(*number);
  if (bias.shape.empty() || bias.shape.back() == matrices_of(weight.tensor.shape).rows) return;
  weight.refuse(bias, "the weight is padded to more rows, which is not supported");
}

// INT4 of AWQ: two codes per I8, the first in the low bits. The value is (code - 8) * scale + zero.
// Scales and zeros are [groups, rows].
void take_awq(Candidate& weight, const Companion& scale) {
  const Tensor& tensor = weight.tensor;
  if (!has_rank(tensor, 2)) weight.refuse("its shape does not fit packed weights");
  Matrices stored = matrices_of(tensor.shape);
  stored.columns = weight.times(stored.columns, 2);
  const std::uint64_t groups = scale.shape.empty() ? 0 : scale.shape[0];
  if (groups == 0 || stored.columns % groups != 0) weight.refuse(scale);
  weight.set_codes(fields(Codes::kFields, 4, 8), stored);
  weight.set_grid(stored.rows, groups, 1, stored.columns / groups);
  weight.set_result(tensor.name, with_last(tensor.shape, stored.columns));
  const auto take = [&](Role role, const Companion& each) {
    const auto type = float_scale_type(each.dtype);
    if (!type || !std::ranges::equal(each.shape, std::array{groups, stored.rows})) {
      weight.refuse(each, "expected a number for each group and row");
    }
    weight.take_on_grid(role, each, {.codes = Codes::kByColumn, .type = *type});
  };
  take(Role::kScale, scale);
  take(Role::kBias, weight.need(tensor.name, "_zeros"));
}

// NVFP4 or MXFP8 with scales in tiles.
void take_tiles(Candidate& weight, const Companion& scale, bool is_nvfp4) {
  const Tensor& tensor = weight.tensor;
  const Microscales& scales = is_nvfp4 ? kNv : kMx;
  if (tensor.dtype != (is_nvfp4 ? DType::kU8 : DType::kF8E4M3) ||
      (scale.dtype != scales.type && scale.dtype != DType::kU8)) {
    weight.refuse(scale, "these are not the types of " + std::string(is_nvfp4 ? "nvfp4" : "mxfp8"));
  }
  if (is_nvfp4) weight.refuse_of_modelopt_for_comfy();
  refuse_padded(weight);
  Matrices stored = matrices_of(tensor.shape);
  if (is_nvfp4) stored.columns = weight.times(stored.columns, 2);
  if (stored.columns % scales.columns != 0) {
    weight.refuse(scale,
                  "the number of columns is not a multiple of " + std::to_string(scales.columns));
  }
  weight.set_codes(is_nvfp4 ? Packing{.codes = Codes::kF4HighFirst} : typed(tensor.dtype), stored);
  weight.take_groups(scale, scales, true);
  weight.set_result(tensor.name, with_last(tensor.shape, stored.columns));
  if (is_nvfp4) {
    weight.take_factor(weight.need(tensor.name, "_scale_2"), QuantizedLayout::Factor::kMultiplies);
  }
}

}  // namespace

bool find_comfy(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  const bool is_fp4 = tensor.dtype == DType::kU8;
  if (!is_fp4 && tensor.dtype != DType::kI8 && tensor.dtype != DType::kF8E4M3) return false;
  if (!weight.finder.has_layers_of_comfy(weight.number) || !tensor.name.ends_with(".weight")) {
    return false;
  }
  const auto scale = weight.find(tensor.name, "_scale");
  if (!scale || (!has_rank(tensor, 2) && !has_rank(tensor, 3))) return false;
  const std::string_view layer = weight.module();
  const auto about = weight.finder.layer_of_comfy(weight.number, layer);
  const std::string_view format = about ? std::string_view(about->format) : "";
  if (format == "awq_w4a16") {
    take_awq(weight, *scale);
  } else if (format == "nvfp4" || format == "mxfp8") {
    take_tiles(weight, *scale, format == "nvfp4");
  } else {
    if (!about && (is_fp4 || scale_type(scale->dtype) == DType::kF8E8M0)) {
      weight.refuse("ComfyUI's texts name the formats of other weights, but not of this one");
    }
    return false;
  }
  if (const auto mark = weight.find(layer, ".comfy_quant")) {
    weight.found.others.push_back(mark->number);
  }
  weight.take_column_scale(layer, ".pre_quant_scale");
  return true;
}

}  // namespace stfs
