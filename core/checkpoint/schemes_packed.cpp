// Weights whose codes are packed into words or bytes: compressed-tensors, MXFP4 of gpt-oss, MLX,
// bitsandbytes, GPTQ and AWQ.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/schemes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace stfs {
namespace {

[[noreturn]] void refuse_half(const Tensor& weight, std::string_view base,
                              std::string_view ending) {
  Finder::refuse(weight, "has no " + in_quotes(std::string(base) + std::string(ending)) +
                             " beside it: the checkpoint is not complete");
}

std::uint32_t need(const Finder& finder, const Tensor& weight, std::string_view base,
                   std::string_view ending) {
  const auto number = finder.find(base, ending);
  if (!number) refuse_half(weight, base, ending);
  return *number;
}

[[noreturn]] void refuse_without_config(const Finder& finder, std::uint32_t number,
                                        const Tensor& weight, const std::string& what) {
  const QuantizationConfig& config = finder.config(number);
  Finder::refuse(weight,
                 "its tensors do not tell " + what + ", and " + printable(config.file) +
                     (config.unreadable.empty() ? " does not either" : ": " + config.unreadable));
}

// Packs, or refuses a size that overflows.
Packing packed_or_refuse(const Tensor& weight, const Packing& packing, std::uint64_t rows,
                         std::uint64_t columns, std::uint64_t unit = 1) {
  const auto whole = packed(packing, rows, columns, unit);
  if (!whole) Finder::refuse(weight, "its size overflows");
  return *whole;
}

std::vector<std::uint64_t> with_last(std::span<const std::uint64_t> shape, std::uint64_t last) {
  std::vector<std::uint64_t> out(shape.begin(), shape.end());
  out.back() = last;
  return out;
}

bool has_rank(const Tensor& tensor, std::size_t rank) { return tensor.shape.size() == rank; }

// --- compressed-tensors

// The numbers in weight_shape.
std::vector<std::uint64_t> numbers_in(const Finder& finder, const Tensor& weight,
                                      const Tensor& tensor) {
  const std::size_t size = type_info(tensor.dtype).block_bytes;
  if (tensor.dtype != DType::kI64 && tensor.dtype != DType::kI32) refuse_companion(weight, tensor);
  const std::string bytes = finder.bytes_of(tensor);
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i + size <= bytes.size(); i += size) {
    std::int64_t number = 0;
    std::int32_t narrow = 0;
    std::memcpy(size == 8 ? static_cast<void*>(&number) : &narrow, bytes.data() + i, size);
    numbers.push_back(static_cast<std::uint64_t>(size == 8 ? number : narrow));
  }
  return numbers;
}

// The packing with the bits of a group of the config in which `columns` columns fill `width` words.
// Refuses a weight for which there are two.
std::optional<Packing> packing_of(const Tensor& weight,
                                  std::span<const QuantizationConfig::Group> groups,
                                  std::uint64_t columns, std::uint64_t width) {
  std::optional<Packing> found;
  for (const QuantizationConfig::Group& group : groups) {
    if (!group.bits || *group.bits > 8 || group.type == "float") continue;
    const auto half = std::int32_t{1} << (*group.bits - 1);
    for (const Codes codes : {Codes::kFields, Codes::kWords}) {
      const Packing packing = fields(codes, *group.bits, half);
      const auto whole = packed(packing, 1, columns, 4);
      if (!whole || whole->pitch != width * 4 || found == packing) continue;
      if (found) {
        Finder::refuse(weight, "its " + std::to_string(columns) +
                                   " columns may be packed in two ways that have the same size");
      }
      found = packing;
      if (32 % *group.bits == 0) break;  // both are the same
    }
  }
  return found;
}

// The columns of a pack-quantized weight. weight_shape tells; a checkpoint of a hundred thousand
// experts elsewhere would have to be fetched for it, so where the scales leave no choice it is read
// only if it is on this machine.
std::uint64_t columns_of(const Finder& finder, const Tensor& weight, const Tensor& scale,
                         const std::optional<std::uint32_t>& shape_number,
                         const QuantizationConfig& config) {
  const Matrices grid = matrices_of(scale.shape);
  const std::uint64_t width = weight.shape.back();
  constexpr std::uint64_t kUntold = 0;
  std::uint64_t by_groups = kUntold;
  bool is_ambiguous = false;
  for (const QuantizationConfig::Group& group : config.groups) {
    if (!group.bits || group.type == "float") continue;
    std::uint64_t columns = 0;
    // Otherwise there is one group of all columns, whose number the config does not tell.
    const bool is_grouped = group.group_size && *group.group_size != QuantizationConfig::kAll &&
                            group.strategy != "channel" && group.strategy != "tensor";
    if (!is_grouped) {
      is_ambiguous = is_ambiguous || grid.columns == 1;
    } else if (!__builtin_mul_overflow(grid.columns, *group.group_size, &columns) &&
               packing_of(weight, {&group, 1}, columns, width)) {
      is_ambiguous = is_ambiguous || (by_groups != kUntold && by_groups != columns);
      by_groups = columns;
    }
  }
  if (is_ambiguous) by_groups = kUntold;
  if (!shape_number) {
    if (by_groups != kUntold) return by_groups;
    Finder::refuse(weight,
                   "has no weight_shape beside it, and the config does not tell its columns");
  }
  const Tensor shape = finder.tensor(*shape_number);
  const std::optional<Extent>& place = shape.locator;
  if (by_groups != kUntold && place && !place->source->has({place->offset, place->length})) {
    return by_groups;
  }
  const std::vector<std::uint64_t> told = numbers_in(finder, weight, shape);
  const Matrices rows = matrices_of(weight.shape);
  // Of stacked experts, the shape of all or of one.
  if (told.size() < 2 || told[told.size() - 2] != rows.rows ||
      (told.size() > 2 && !std::ranges::equal(std::span(told).first(told.size() - 1),
                                              weight.shape.first(weight.shape.size() - 1)))) {
    refuse_companion(weight, shape, "it tells another shape");
  }
  return told.back();
}

void add_zero_points(const Finder& finder, const Tensor& weight, std::string_view base,
                     const Packing& packing, QuantizedWeight& found) {
  const auto number = finder.find(base, "_zero_point");
  if (!number) return;
  const Tensor zero = finder.tensor(*number);
  QuantizedLayout& layout = found.layout;
  found.input(Role::kZero) = *number;
  if (zero.dtype == DType::kI8) {
    layout.zero =
        packed_or_refuse(weight, {.codes = Codes::kSigned}, layout.grid_rows, layout.grid_columns);
  } else if (zero.dtype == DType::kI32) {
    Packing down = packing;
    down.codes = packing.codes == Codes::kFields ? Codes::kDown : Codes::kWordsDown;
    layout.zero = packed_or_refuse(weight, down, layout.grid_rows, layout.grid_columns);
  } else {
    refuse_companion(weight, zero, "zero points are I8 or I32");
  }
}

bool find_pack_quantized(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                         std::string_view base, QuantizedWeight& found) {
  const std::string prefix = std::string(base);
  const QuantizationConfig& config = finder.config(number);
  const std::uint32_t scale_number = need(finder, tensor, prefix, "_scale");
  const Tensor scale = finder.tensor(scale_number);
  const auto shape_number = finder.find(prefix, "_shape");
  const auto type = scale_type(scale.dtype);
  const Matrices words = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  if (!type || tensor.shape.size() < 2 || scale.shape.size() != tensor.shape.size() ||
      grid.matrices != words.matrices || (grid.rows != words.rows && grid.rows != 1) ||
      grid.columns == 0) {
    refuse_companion(tensor, scale);
  }
  const std::uint64_t columns = columns_of(finder, tensor, scale, shape_number, config);
  const auto packing = packing_of(tensor, config.groups, columns, words.columns);
  if (!packing) {
    if (config.groups.empty()) {
      refuse_without_config(finder, number, tensor, "the number of bits");
    }
    Finder::refuse(tensor, std::to_string(columns) + " columns in " +
                               std::to_string(words.columns) +
                               " words are no packing of the bits "
                               "that " +
                               printable(config.file) + " names");
  }
  QuantizedLayout& layout = found.layout;
  layout.matrices = words.matrices;
  layout.rows = words.rows;
  layout.columns = columns;
  layout.weight = packed_or_refuse(tensor, *packing, words.rows, columns, 4);
  layout.grid_rows = grid.rows;
  layout.grid_columns = grid.columns;
  layout.block_rows = grid.rows == words.rows ? 1 : std::max<std::uint64_t>(words.rows, 1);
  if (columns % grid.columns != 0) {
    refuse_companion(tensor, scale, "the columns are no multiple of its groups");
  }
  layout.block_columns = std::max<std::uint64_t>(columns / grid.columns, 1);
  layout.scale = packed_or_refuse(tensor, typed(*type), grid.rows, grid.columns);
  found.name = base;
  found.shape = with_last(tensor.shape, columns);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale_number;
  if (shape_number) found.input(Role::kShape) = *shape_number;
  add_zero_points(finder, tensor, prefix, *packing, found);
  if (const auto index = finder.find(prefix, "_g_idx")) {
    if (finder.tensor(*index).dtype != DType::kI32 || layout.grid_rows != layout.rows) {
      refuse_companion(tensor, finder.tensor(*index));
    }
    found.input(Role::kIndex) = *index;
    layout.index_may_be_unused = true;
  }
  return true;
}

bool find_fp4_packed(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                     std::string_view base, QuantizedWeight& found) {
  const std::uint32_t scale_number = need(finder, tensor, base, "_scale");
  const Tensor scale = finder.tensor(scale_number);
  std::uint64_t last = 0;
  if (tensor.shape.size() < 2 || __builtin_mul_overflow(tensor.shape.back(), 2, &last)) {
    Finder::refuse(tensor, "its shape is not that of packed weights");
  }
  const bool is_nvfp4 = scale.dtype == DType::kF8E4M3;
  const bool is_mxfp4 = scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0;
  if (!is_nvfp4 && !is_mxfp4) refuse_companion(tensor, scale, "no type of the scales of FP4");
  const std::uint64_t group = is_nvfp4 ? 16 : 32;
  const Matrices all = matrices_of(tensor.shape);
  const Matrices grid = matrices_of(scale.shape);
  if (scale.shape.size() != tensor.shape.size() || grid.matrices != all.matrices ||
      grid.rows != all.rows || last % group != 0 || grid.columns != last / group) {
    refuse_companion(tensor, scale,
                     "a scale for each " + std::to_string(group) + " columns is expected");
  }
  QuantizedLayout& layout = found.layout;
  layout.matrices = all.matrices;
  layout.rows = all.rows;
  layout.columns = last;
  layout.weight = packed_or_refuse(tensor, typed(DType::kF4), all.rows, last);
  layout.grid_rows = grid.rows;
  layout.grid_columns = grid.columns;
  layout.block_columns = group;
  layout.scale = packed_or_refuse(tensor, typed(is_nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0),
                                  grid.rows, grid.columns);
  found.name = base;
  found.shape = with_last(tensor.shape, last);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale_number;
  const auto factor_number = finder.find(base, "_global_scale");
  if (is_nvfp4 != factor_number.has_value()) {
    if (is_nvfp4) refuse_half(tensor, base, "_global_scale");
    refuse_companion(tensor, finder.tensor(*factor_number), "MXFP4 has no global scale");
  }
  if (!is_nvfp4) return true;
  const Tensor factor = finder.tensor(*factor_number);
  const bool is_of_matrix = factor.elements() != 1;
  if (factor.dtype != DType::kF32 || (is_of_matrix && factor.elements() != all.matrices)) {
    refuse_companion(tensor, factor);
  }
  found.input(Role::kFactor) = *factor_number;
  layout.factor = QuantizedLayout::Factor::kDivides;
  layout.factor_is_of_matrix = is_of_matrix;
  return true;
}

}  // namespace

bool find_packed(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                 QuantizedWeight& found) {
  if (!tensor.name.ends_with(".weight_packed")) return false;
  const std::string_view base = without_ending(tensor.name, "_packed");
  if (tensor.dtype == DType::kI32) return find_pack_quantized(finder, number, tensor, base, found);
  if (tensor.dtype == DType::kU8) return find_fp4_packed(finder, number, tensor, base, found);
  Finder::refuse(tensor,
                 "packed weights are I32 or U8, not " + std::string(dtype_name(tensor.dtype)));
}

// --- gpt-oss

bool find_gpt_oss(const Finder& finder, std::uint32_t number, const Tensor& tensor,
                  QuantizedWeight& found) {
  const bool is_turned = tensor.name.ends_with("_blocks");
  if (!is_turned && !tensor.name.ends_with(".blocks")) return false;
  const std::string_view base = tensor.name.substr(0, tensor.name.size() - 7);
  const std::string_view ending = is_turned ? "_scales" : ".scales";
  const bool has_blocks =
      tensor.dtype == DType::kU8 && has_rank(tensor, 4) && tensor.shape[3] == 16;
  const auto scales = finder.find(base, ending);
  if (!has_blocks && !scales) return false;
  const std::uint32_t scale_number = need(finder, tensor, base, ending);
  const Tensor scale = finder.tensor(scale_number);
  if (!has_blocks) refuse_companion(tensor, scale, "blocks of 16 bytes, U8, are expected");
  if (scale.dtype != DType::kU8 || !std::ranges::equal(scale.shape, tensor.shape.first(3))) {
    refuse_companion(tensor, scale, "a scale for each block of 32 is expected");
  }
  QuantizedLayout& layout = found.layout;
  layout.matrices = tensor.shape[0];
  layout.rows = tensor.shape[1];
  if (__builtin_mul_overflow(tensor.shape[2], 32, &layout.columns)) {
    Finder::refuse(tensor, "its size overflows");
  }
  layout.is_transposed = is_turned;
  layout.weight = packed_or_refuse(tensor, typed(DType::kF4), layout.rows, layout.columns);
  layout.grid_rows = layout.rows;
  layout.grid_columns = tensor.shape[2];
  layout.block_columns = 32;
  layout.scale =
      packed_or_refuse(tensor, typed(DType::kF8E8M0), layout.grid_rows, layout.grid_columns);
  found.name = base;
  found.shape = {layout.matrices, layout.rows, layout.columns};
  if (is_turned) std::swap(found.shape[1], found.shape[2]);
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale_number;
  return true;
}

// --- MLX

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
    if (own->second.bits) module.bits = own->second.bits;
    if (own->second.group_size) module.group_size = own->second.group_size;
    if (!own->second.mode.empty()) module.mode = own->second.mode;
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

// --- bitsandbytes

bool find_bnb4(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  const auto nf4 = finder.find(tensor.name, ".quant_state.bitsandbytes__nf4");
  const auto fp4 = finder.find(tensor.name, ".quant_state.bitsandbytes__fp4");
  const auto absmax_number = finder.find(tensor.name, ".absmax");
  if (!nf4 && !fp4) {
    if (absmax_number) refuse_half(tensor, tensor.name, ".quant_state.bitsandbytes__nf4");
    return false;
  }
  const Tensor state_tensor = finder.tensor(nf4 ? *nf4 : *fp4);
  const auto state = parse_quant_state(finder.bytes_of(state_tensor));
  if (!state || (nf4 && fp4) || state->type != (nf4 ? "nf4" : "fp4")) {
    refuse_companion(tensor, state_tensor, "its JSON is not that of a quantised weight");
  }
  const std::uint32_t scale_number = need(finder, tensor, tensor.name, ".absmax");
  const Tensor absmax = finder.tensor(scale_number);
  const std::uint32_t map_number = need(finder, tensor, tensor.name, ".quant_map");
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
  found.input(Role::kState) = nf4 ? *nf4 : *fp4;
  const bool is_nested = state->nested_block != 0;
  if (absmax.dtype != (is_nested ? DType::kU8 : DType::kF32)) refuse_companion(tensor, absmax);
  const Packing scale = is_nested ? fields(Codes::kFields, 8) : typed(DType::kF32);
  layout.scale = packed_or_refuse(tensor, scale, 1, layout.grid_columns);
  if (!is_nested) return true;
  layout.nested_block = state->nested_block;
  layout.nested_offset = state->nested_offset;
  for (const auto& [role, ending] : {std::pair(Role::kNestedScale, ".nested_absmax"),
                                     std::pair(Role::kLevels, ".nested_quant_map")}) {
    found.input(role) = need(finder, tensor, tensor.name, ending);
    const Tensor nested = finder.tensor(found.input(role));
    if (nested.dtype != DType::kF32) refuse_companion(tensor, nested);
  }
  return true;
}

bool find_bnb8(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  if (tensor.dtype != DType::kI8 || !tensor.name.ends_with(".weight")) return false;
  const std::string_view base = without_ending(tensor.name, ".weight");
  const auto scale_number = finder.find(base, ".SCB");
  if (!scale_number) return false;
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

// --- GPTQ and AWQ: stored [in, out], the result is [out, in]

namespace {

// The tensors beside a qweight.
struct Qweight {
  std::string_view base;
  Tensor scale;
  std::uint32_t scale_number;
  std::optional<std::uint32_t> zeros;
};

Qweight qweight_of(const Finder& finder, const Tensor& tensor) {
  Qweight out;
  out.base = without_ending(tensor.name, ".qweight");
  out.scale_number = need(finder, tensor, out.base, ".scales");
  out.scale = finder.tensor(out.scale_number);
  out.zeros = finder.find(out.base, ".qzeros");
  const auto type = scale_type(out.scale.dtype);
  if (tensor.dtype != DType::kI32 || !has_rank(tensor, 2)) {
    Finder::refuse(tensor, "its shape or type is not that of GPTQ or AWQ");
  }
  if (!type || *type == DType::kF8E8M0 || !has_rank(out.scale, 2) || out.scale.shape[0] == 0) {
    refuse_companion(tensor, out.scale);
  }
  return out;
}

// Sets what both have: the grid is [groups, out], and the result the transpose.
void set_turned(const Tensor& tensor, std::uint32_t number, const Qweight& parts,
                std::uint64_t rows, std::uint64_t columns, std::optional<std::uint64_t> group_size,
                bool has_index, const Packing& codes, QuantizedWeight& found) {
  QuantizedLayout& layout = found.layout;
  const std::uint64_t groups = parts.scale.shape[0];
  layout.rows = rows;
  layout.columns = columns;
  layout.is_transposed = true;
  layout.weight = packed_or_refuse(tensor, codes, rows, columns, 4);
  std::uint64_t group = group_size.value_or(0);
  if (group == 0 && rows % groups == 0) group = rows / groups;
  group = std::clamp<std::uint64_t>(group, 1, std::max<std::uint64_t>(rows, 1));
  if (parts.scale.shape[1] != columns || (rows + group - 1) / group != groups) {
    if (has_index) refuse_companion(tensor, parts.scale, "it has another number of groups");
    refuse_companion(tensor, parts.scale);
  }
  layout.block_rows = group;
  layout.grid_rows = groups;
  layout.grid_columns = columns;
  layout.scale = packed_or_refuse(tensor, typed(parts.scale.dtype), groups, columns);
  found.name = std::string(parts.base) + ".weight";
  found.shape = {columns, rows};
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = parts.scale_number;
}

}  // namespace

bool find_gptq(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  if (!tensor.name.ends_with(".qweight")) return false;
  const Qweight parts = qweight_of(finder, tensor);
  if (parts.scale.shape[1] != tensor.shape[1]) return false;  // AWQ
  const QuantizationConfig& config = finder.config(number);
  if (config.method != "gptq" && config.method != "auto-round" &&
      config.method != "intel/auto-round") {
    if (config.method.empty()) refuse_without_config(finder, number, tensor, "the version of GPTQ");
    Finder::refuse(tensor, "stored as by GPTQ, but " + printable(config.file) +
                               " names quant_method " + in_quotes(config.method));
  }
  const bool is_v2 = config.format == "gptq_v2";
  const bool is_v1 = config.format.empty() || config.format == "gptq" ||
                     config.format == "auto_round" || config.format == "auto_round:auto_gptq" ||
                     config.format == "auto_round:gptq";
  if (!is_v1 && !is_v2) {
    Finder::refuse(tensor, "the layout " + in_quotes(config.format) + " of GPTQ is not supported");
  }
  const auto index_number = finder.find(parts.base, ".g_idx");
  std::uint64_t bits = config.bits.value_or(0);
  std::uint64_t word_bits = 0;
  if (__builtin_mul_overflow(tensor.shape[0], 32, &word_bits))
    Finder::refuse(tensor, "its size overflows");
  if (index_number) {
    const Tensor index = finder.tensor(*index_number);
    const std::uint64_t rows = index.elements();
    if (index.dtype != DType::kI32 || !has_rank(index, 1) || rows == 0 || word_bits % rows != 0) {
      refuse_companion(tensor, index);
    }
    if (config.has_exceptions || bits == 0) bits = word_bits / rows;
    if (bits != word_bits / rows)
      refuse_companion(tensor, index, "the bits of config.json do not fit");
    found.input(Role::kIndex) = *index_number;
  }
  if (bits == 0) refuse_without_config(finder, number, tensor, "the number of bits");
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    Finder::refuse(
        tensor, "GPTQ with " + std::to_string(bits) + " bits is not supported: 2, 3, 4 or 8 are");
  }
  if (word_bits % bits != 0) {
    Finder::refuse(
        tensor, std::to_string(tensor.shape[0]) + " rows of words hold no whole number of codes");
  }
  const std::uint64_t rows = word_bits / bits;
  auto group = config.group_size;
  if (config.has_exceptions) group.reset();
  set_turned(tensor, number, parts, rows, tensor.shape[1], group, index_number.has_value(),
             fields(Codes::kDown, bits), found);
  found.layout.index_is_of_rows = true;
  if (!parts.zeros) refuse_half(tensor, parts.base, ".qzeros");
  const Tensor zeros = finder.tensor(*parts.zeros);
  Packing zero = fields(Codes::kFields, bits);
  zero.added = is_v1 ? 1 : 0;
  zero = packed_or_refuse(tensor, zero, found.layout.grid_rows, found.layout.grid_columns, 4);
  if (zeros.dtype != DType::kI32 || !has_rank(zeros, 2) ||
      zeros.shape[0] != found.layout.grid_rows || zeros.shape[1] != zero.pitch / 4) {
    refuse_companion(tensor, zeros);
  }
  found.layout.zero = zero;
  found.input(Role::kZero) = *parts.zeros;
  return true;
}

bool find_awq(const Finder& finder, std::uint32_t number, const Tensor& tensor,
              QuantizedWeight& found) {
  if (!tensor.name.ends_with(".qweight")) return false;
  const Qweight parts = qweight_of(finder, tensor);
  const QuantizationConfig& config = finder.config(number);
  std::uint64_t columns = 0;
  const bool is_gemm =
      (config.format.empty() || config.format == "gemm" || config.format == "auto_round:auto_awq" ||
       config.format == "auto_round:awq") &&
      !__builtin_mul_overflow(tensor.shape[1], 8, &columns) && columns == parts.scale.shape[1];
  if (!is_gemm ||
      (config.method != "awq" && config.method != "auto-round" && !config.method.empty())) {
    Finder::refuse(tensor, "neither the layout of GPTQ nor that of AWQ's GEMM" +
                               (config.format.empty() ? "" : ": " + in_quotes(config.format)) +
                               "; others are not supported");
  }
  if (config.bits.value_or(4) != 4)
    Finder::refuse(tensor, "AWQ with other than 4 bits is not supported");
  if (!parts.zeros && config.zero_point != false) refuse_half(tensor, parts.base, ".qzeros");
  Packing codes = fields(Codes::kInterleaved, 4, parts.zeros ? 0 : 8);
  set_turned(tensor, number, parts, tensor.shape[0], columns, config.group_size, false, codes,
             found);
  if (!parts.zeros) return true;
  const Tensor zeros = finder.tensor(*parts.zeros);
  const Packing zero =
      packed_or_refuse(tensor, fields(Codes::kInterleaved, 4), found.layout.grid_rows, columns, 4);
  if (zeros.dtype != DType::kI32 || !has_rank(zeros, 2) ||
      zeros.shape[0] != found.layout.grid_rows || zeros.shape[1] != tensor.shape[1]) {
    refuse_companion(tensor, zeros);
  }
  found.layout.zero = zero;
  found.input(Role::kZero) = *parts.zeros;
  return true;
}

}  // namespace stfs
