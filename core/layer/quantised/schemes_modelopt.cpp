// ModelOpt's INT4, which is packed along the rows. Its FP8, NVFP4, MXFP8 and MXFP4 are those of
// schemes_scaled.cpp.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>

namespace stfs {

bool find_modelopt_int4(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                        QuantizedWeight& found) {
  if (tensor.dtype != DType::kU8 || !tensor.name.ends_with(".weight")) return false;
  const auto scale_number = finder.find(tensor.name, "_scale");
  if (!scale_number || tensor.shape.size() < 2) return false;
  const Tensor scale = finder.tensor(*scale_number);
  const auto type = scale_type(scale.dtype);
  if (!type || *type == DType::kF8E8M0) return false;
  if (!finder.config(number).method.starts_with("modelopt")) return false;
  if (finder.find(tensor.name, "_scale_2")) {
    Finder::refuse(tensor,
                   "INT4 whose values ModelOpt rounds to FP8 once more (W4A8_AWQ): not supported");
  }
  const Matrices bytes = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  QuantizedLayout& layout = found.layout;
  if (scale.shape.size() != tensor.shape.size() || grid.matrices != bytes.matrices ||
      __builtin_mul_overflow(bytes.rows, 2, &layout.rows) || grid.rows != layout.rows ||
      grid.columns == 0 || bytes.columns % grid.columns != 0) {
    refuse_companion(tensor, scale, "INT4 of ModelOpt has two rows in each row of bytes");
  }
  layout.matrices = bytes.matrices;
  layout.columns = bytes.columns;
  // Two's complement: -8 to 7.
  Packing codes = fields(Codes::kNibblesDown, 4, 8);
  codes.added = 8;
  layout.weight = packed_or_refuse(tensor, codes, layout.rows, layout.columns);
  layout.grid_rows = layout.rows;
  layout.grid_columns = grid.columns;
  layout.block_columns = std::max<std::uint64_t>(layout.columns / grid.columns, 1);
  layout.scale = packed_or_refuse(tensor, typed(*type), layout.grid_rows, layout.grid_columns);
  found.name = tensor.name;
  found.shape.assign(tensor.shape.begin(), tensor.shape.end());
  found.shape[found.shape.size() - 2] = layout.rows;
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = *scale_number;
  add_column_scale(finder, tensor, without_ending(tensor.name, ".weight"), ".pre_quant_scale",
                   found);
  return true;
}

}  // namespace stfs
