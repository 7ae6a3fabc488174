// MLX: codes in a stream of bits with scales and biases, or numbers of a type with scales.
#include "core/base/text.h"
#include "core/checkpoint/schemes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stfs {
namespace {

struct MlxForm {
  std::uint64_t bits;
  std::uint64_t group;
  bool has_biases;
  Packing codes;
  DType scale;
};

// The parameters of a module: those of the config, or for the modes without biases what the bytes
// of a group tell.
MlxForm mlx_form(const Finder& finder, std::uint32_t number, const Tensor& weight,
                 std::string_view base, const Tensor& scale, bool has_biases) {
  const QuantizationConfig& config = finder.config(number);
  QuantizationConfig::Module module = config.all;
  if (!module.bits) module.bits = config.bits;
  if (!module.group_size) module.group_size = config.group_size;
  if (const auto own = config.modules.find(std::string(base)); own != config.modules.end()) {
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
