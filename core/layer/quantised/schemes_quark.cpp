// Quark: refuses what Quark stores in its own formats. Its FP8 and MXFP4 are handled in
// schemes_scaled.cpp, its GPTQ and AWQ in schemes_gptq.cpp.
#include "core/layer/quantised/schemes.h"

namespace stfs {

bool find_quark(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (tensor.dtype != DType::kI32 && tensor.dtype != DType::kU8) return false;
  if (!tensor.name.ends_with(".weight") || tensor.shape.empty()) return false;
  const auto scale = weight.find(tensor.name, "_scale");
  if (!scale || weight.config().method != "quark") return false;
  if (tensor.dtype == DType::kI32) {
    weight.refuse(
        "INT4 of Quark, in whose words the columns are reordered, is not supported: export it with "
        "Quark as AWQ or unquantised");
  }
  // 32 columns take 24 bytes in MXFP6, and 16 bytes in MXFP4.
  const std::uint64_t groups = scale->shape.empty() ? 0 : scale->shape.back();
  if (scale->dtype == DType::kU8 && groups > 0 && tensor.shape.back() / 24 == groups &&
      tensor.shape.back() % 24 == 0) {
    weight.refuse("MXFP6 of Quark is not supported: export it with Quark unquantised");
  }
  return false;
}

}  // namespace stfs
