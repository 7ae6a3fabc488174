// MLX: codes in a stream of bits with scales and biases, or typed numbers with scales.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kLongestKey = 512;  // the maximum length of a module's name, in bytes

struct MlxForm {
  std::uint64_t bits;
  std::uint64_t group;
  Packing codes;
  DType scale;
};

// The modes without biases, distinguished by the bytes per group.
struct MlxMode {
  std::string_view name;
  std::uint64_t bytes;
  std::uint64_t bits;
  DType codes;
  const Microscales& scales;
};
constexpr MlxMode kModes[] = {
    {"nvfp4", 8, 4, DType::kF4, kNv},
    {"mxfp4", 16, 4, DType::kF4, kMx},
    {"mxfp8", 32, 8, DType::kF8E4M3, kMx},
};

// Returns the entry of the module in the config. An entry in text_config may use the name that the
// module has inside the text model.
std::map<std::string, QuantizationConfig::Module>::const_iterator own_parameters(
    const QuantizationConfig& config, std::string_view base) {
  const auto whole = config.modules.find(std::string(base));
  if (whole != config.modules.end() || !config.is_of_text) return whole;
  for (const std::string_view beginning : kTextModels) {
    const std::size_t at = base.find(beginning);
    if (at == std::string_view::npos) continue;
    return config.modules.find(std::string(base.substr(at + beginning.size())));
  }
  return whole;
}

// Refuses a weight if another key of the config may mean it, because the key is the end of the
// module's name. Its words could then be decoded in two ways, because 4 bits in groups of 64 take
// as many words as 8 bits in groups of 32.
void refuse_of_another_name(const Candidate& weight, const QuantizationConfig::Module& all) {
  const QuantizationConfig& config = weight.config();
  const std::string_view base = weight.module();
  for (std::size_t dot = base.find('.'); dot != std::string_view::npos && !config.modules.empty();
       dot = base.find('.', dot + 1)) {
    if (base.size() - dot > kLongestKey) continue;
    const auto other = config.modules.find(std::string(base.substr(dot + 1)));
    if (other == config.modules.end() || !other->second.is_quantized) continue;
    const QuantizationConfig::Module& own = other->second;
    const bool is_same = own.bits == all.bits && own.group_size == all.group_size;
    const bool fits = own.bits && own.group_size && all.bits && all.group_size &&
                      *own.bits * *own.group_size == *all.bits * *all.group_size;
    if (is_same || !fits) continue;
    weight.refuse(printable(config.file) + " has other parameters for " + in_quotes(other->first) +
                  ", which may mean this weight");
  }
}

// Returns the parameters of a module: with biases, the parameters in the config; without biases,
// the mode that the bytes per group determine.
MlxForm mlx_form(const Candidate& weight, const Tensor& scale, bool has_biases) {
  const QuantizationConfig& config = weight.config();
  QuantizationConfig::Module module = config.all;
  if (!module.bits) module.bits = config.bits;
  if (!module.group_size) module.group_size = config.group_size;
  const auto own = own_parameters(config, weight.module());
  if (own == config.modules.end()) {
    if (has_biases) refuse_of_another_name(weight, module);
  } else {
    if (!own->second.is_quantized) {
      weight.refuse(printable(config.file) + " says that it is not quantised, but it has scales");
    }
    module = own->second;
  }
  if (has_biases) {
    if (!module.mode.empty() && module.mode != "affine") {
      weight.refuse("has biases, but mode " + in_quotes(module.mode) + " has none");
    }
    if (!module.bits || !module.group_size || *module.group_size == QuantizationConfig::kAll) {
      weight.refuse_without_config("the number of bits and the size of a group");
    }
    const auto type = float_scale_type(scale.dtype);
    const std::uint64_t bits = *module.bits;
    if (!type) weight.refuse(scale, "not a valid type for a scale");
    if (bits < 2 || bits > 8 || bits == 7) {
      weight.refuse(std::to_string(bits) + " bits: only 2 to 6, and 8, are supported");
    }
    return {bits, *module.group_size, fields(Codes::kFields, bits), *type};
  }
  if (scale.dtype != DType::kU8) {
    weight.refuse("has scales, but no biases: the checkpoint is not complete");
  }
  const std::uint64_t groups = scale.shape.empty() ? 0 : scale.shape.back();
  for (const MlxMode& mode : kModes) {
    std::uint64_t words = 0;
    if (__builtin_mul_overflow(groups, mode.bytes / 4, &words) ||
        words != weight.tensor.shape.back()) {
      continue;
    }
    if (groups == 0 || (!module.mode.empty() && module.mode != mode.name)) break;
    return {mode.bits, mode.scales.columns, typed(mode.codes), mode.scales.type};
  }
  weight.refuse(scale);
}

}  // namespace

bool find_mlx(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (tensor.dtype != DType::kU32 || !tensor.name.ends_with(".weight") || tensor.shape.empty()) {
    return false;
  }
  const std::string_view base = weight.module();
  auto bias = weight.find(base, ".biases");
  if (!bias) bias = weight.find(base, ".qbiases");
  const auto scale = weight.find(base, ".scales");
  if (!scale) {
    if (bias) weight.refuse_half(base, ".scales");
    return false;
  }
  const MlxForm form = mlx_form(weight, *scale, bias.has_value());
  const Matrices words = matrices_of(tensor.shape);
  const std::size_t rank = tensor.shape.size();
  std::uint64_t columns = 0;
  std::uint64_t bits = 0;
  std::uint64_t word_bits = 0;
  if (scale->shape.size() != rank ||
      !std::ranges::equal(scale->shape.first(rank - 1), tensor.shape.first(rank - 1)) ||
      __builtin_mul_overflow(scale->shape.back(), form.group, &columns) ||
      __builtin_mul_overflow(columns, form.bits, &bits) ||
      __builtin_mul_overflow(words.columns, 32, &word_bits) || bits != word_bits) {
    weight.refuse(*scale, "groups of " + std::to_string(form.group) + " codes of " +
                              std::to_string(form.bits) + " bits do not fill the words");
  }
  weight.set_codes(form.codes, {.rows = words.matrices * words.rows, .columns = columns});
  weight.set_grid(weight.found.layout.rows, scale->shape.back(), 1, form.group);
  weight.take_on_grid(Role::kScale, *scale, typed(form.scale));
  weight.set_result(tensor.name, with_last(tensor.shape, columns));
  if (!bias) return true;
  const auto type = float_scale_type(bias->dtype);
  if (!type || !std::ranges::equal(bias->shape, scale->shape)) {
    weight.refuse(*bias, "expected biases with the shape of the scales");
  }
  weight.take_on_grid(Role::kBias, *bias, typed(*type));
  return true;
}

}  // namespace stfs
