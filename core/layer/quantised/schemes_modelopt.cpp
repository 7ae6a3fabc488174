// ModelOpt's INT4, which is packed along the rows. Its FP8, NVFP4, MXFP8 and MXFP4 are handled in
// schemes_scaled.cpp.
#include "core/layer/quantised/schemes.h"

namespace stfs {

bool find_modelopt_int4(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (tensor.dtype != DType::kU8 || !tensor.name.ends_with(".weight")) return false;
  const auto scale = weight.find(tensor.name, "_scale");
  if (!scale || tensor.shape.size() < 2) return false;
  const auto type = float_scale_type(scale->dtype);
  if (!type || !weight.config().method.starts_with("modelopt")) return false;
  if (weight.find(tensor.name, "_scale_2")) {
    weight.refuse("INT4 whose values ModelOpt rounds to FP8 once more (W4A8_AWQ): not supported");
  }
  Matrices stored = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale->shape);
  if (scale->shape.size() != tensor.shape.size() || grid.matrices != stored.matrices ||
      __builtin_mul_overflow(stored.rows, 2, &stored.rows) || grid.rows != stored.rows ||
      grid.columns == 0 || stored.columns % grid.columns != 0) {
    weight.refuse(*scale, "INT4 of ModelOpt has two rows in each row of bytes");
  }
  Packing codes = fields(Codes::kNibblesDown, 4, 8);
  codes.added = 8;  // two's complement, -8 to 7
  weight.set_codes(codes, stored);
  weight.set_grid(stored.rows, grid.columns, 1, stored.columns / grid.columns);
  weight.take_on_grid(Role::kScale, *scale, typed(*type));
  weight.set_result(tensor.name, tensor.shape);
  weight.found.shape[tensor.shape.size() - 2] = stored.rows;
  weight.take_column_scale(weight.module(), ".pre_quant_scale");
  return true;
}

}  // namespace stfs
