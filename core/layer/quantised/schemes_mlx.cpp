// MLX: codes in a stream of bits with scales and biases, or numbers of a type with scales.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kLongestKey = 512;  // bytes of a module's name

struct MlxForm {
  std::uint64_t bits;
  std::uint64_t group;
  bool has_biases;
  Packing codes;
  DType scale;
};

// The module's own entry in the config. One that text_config has may name a part of the text model,
// by its name there.
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

// A key that is the end of the module's name may mean it, and the same words may then be read in
// two ways: 4 bits in groups of 64 fill as many as 8 bits in groups of 32.
void refuse_of_another_name(const QuantizationConfig& config, const Tensor& weight,
                            std::string_view base, const QuantizationConfig::Module& all) {
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
    Finder::refuse(weight, printable(config.file) + " has other parameters for " +
                               in_quotes(other->first) + ", which may mean it");
  }
}

// The parameters of a module: those of the config, or for the modes without biases what the bytes
// of a group tell.
MlxForm mlx_form(const Finder& finder, std::uint32_t number, const Tensor& weight,
                 std::string_view base, const Tensor& scale, bool has_biases) {
  const QuantizationConfig& config = finder.config(number);
  QuantizationConfig::Module module = config.all;
  if (!module.bits) module.bits = config.bits;
  if (!module.group_size) module.group_size = config.group_size;
  const auto own = own_parameters(config, base);
  if (own == config.modules.end()) {
    if (has_biases) refuse_of_another_name(config, weight, base, module);
  } else {
    if (!own->second.is_quantized) {
      Finder::refuse(weight, printable(config.file) +
                                 " says that it is not quantised, but it has "
                                 "scales");
    }
    module = own->second;
  }
  const bool is_affine = module.mode.empty() || module.mode == "affine";
  if (has_biases) {
    if (!is_affine)
      Finder::refuse(weight, "has biases, which mode " + in_quotes(module.mode) + " has not");
    if (!module.bits || !module.group_size || *module.group_size == QuantizationConfig::kAll) {
      refuse_without_config(finder, number, weight, "the number of bits and the size of a group");
    }
    const auto type = scale_type(scale.dtype);
    const std::uint64_t bits = *module.bits;
    if (!type || *type == DType::kF8E8M0) refuse_companion(weight, scale, "no type of a scale");
    if (bits < 2 || bits > 8 || bits == 7) {
      Finder::refuse(weight, std::to_string(bits) + " bits: 2 to 6, or 8, are expected");
    }
    return {bits, *module.group_size, true, fields(Codes::kFields, bits), *type};
  }
  if (scale.dtype != DType::kU8) {
    Finder::refuse(weight, "has scales, but no biases: the checkpoint is not complete");
  }
  constexpr std::array<std::pair<std::string_view, std::uint64_t>, 3> kModes{
      {{"nvfp4", 8}, {"mxfp4", 16}, {"mxfp8", 32}}};  // bytes of a group
  const std::uint64_t groups = scale.shape.empty() ? 0 : scale.shape.back();
  for (const auto& [mode, bytes] : kModes) {
    std::uint64_t words = 0;
    if (__builtin_mul_overflow(groups, bytes / 4, &words) || words != weight.shape.back()) continue;
    if (groups == 0 || (!module.mode.empty() && module.mode != mode)) break;
    if (mode == "nvfp4") return {4, 16, false, typed(DType::kF4), DType::kF8E4M3};
    if (mode == "mxfp4") return {4, 32, false, typed(DType::kF4), DType::kF8E8M0};
    return {8, 32, false, typed(DType::kF8E4M3), DType::kF8E8M0};
  }
  refuse_companion(weight, scale);
}

}  // namespace

bool find_mlx(const Finder& finder, std::uint32_t number, const Tensor& tensor,
              QuantizedWeight& found) {
  if (tensor.dtype != DType::kU32 || !tensor.name.ends_with(".weight") || tensor.shape.empty()) {
    return false;
  }
  const std::string_view base = without_ending(tensor.name, ".weight");
  auto bias_number = finder.find(base, ".biases");
  if (!bias_number) bias_number = finder.find(base, ".qbiases");
  const auto scale_number = finder.find(base, ".scales");
  if (!scale_number) {
    if (bias_number) refuse_half(tensor, base, ".scales");
    return false;
  }
  const Tensor scale = finder.tensor(*scale_number);
  const MlxForm form = mlx_form(finder, number, tensor, base, scale, bias_number.has_value());
  const Matrices words = matrices_of(tensor.shape);
  const std::size_t rank = tensor.shape.size();
  QuantizedLayout& layout = found.layout;
  std::uint64_t bits = 0;
  std::uint64_t word_bits = 0;
  if (scale.shape.size() != rank ||
      !std::ranges::equal(scale.shape.first(rank - 1), tensor.shape.first(rank - 1)) ||
      __builtin_mul_overflow(scale.shape.back(), form.group, &layout.columns) ||
      __builtin_mul_overflow(layout.columns, form.bits, &bits) ||
      __builtin_mul_overflow(words.columns, 32, &word_bits) || bits != word_bits) {
    refuse_companion(tensor, scale,
                     "groups of " + std::to_string(form.group) + " codes of " +
                         std::to_string(form.bits) + " bits do not fill the words");
  }
  layout.rows = words.matrices * words.rows;
  layout.weight = packed_or_refuse(tensor, form.codes, layout.rows, layout.columns);
  layout.grid_rows = layout.rows;
  layout.grid_columns = scale.shape.back();
  layout.block_columns = std::max<std::uint64_t>(form.group, 1);
  layout.scale = packed_or_refuse(tensor, typed(form.scale), layout.grid_rows, layout.grid_columns);
  found.name = tensor.name;
  found.shape = with_last(tensor.shape, layout.columns);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = *scale_number;
  if (!bias_number) return true;
  const Tensor bias = finder.tensor(*bias_number);
  const auto type = scale_type(bias.dtype);
  if (!type || *type == DType::kF8E8M0 || !std::ranges::equal(bias.shape, scale.shape)) {
    refuse_companion(tensor, bias, "biases like the scales are expected");
  }
  layout.bias = packed_or_refuse(tensor, typed(*type), layout.grid_rows, layout.grid_columns);
  found.input(Role::kBias) = *bias_number;
  return true;
}

}  // namespace stfs
