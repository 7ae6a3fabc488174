// Weights whose elements are numbers of a type, FP8, FP4 or INT8, with a tensor of scales.
#include "core/base/error.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <bit>

namespace stfs {
namespace {

bool has_fp8_codes(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

// The rows or columns of a block, when `scales` scales lie along a dimension: 0 when they do not
// fit. `wanted` is the size that config.json names, or 0.
std::uint64_t block_along(std::uint64_t size, std::uint64_t scales, std::uint64_t wanted) {
  if (scales == 0) return size == 0 ? 1 : 0;
  if (wanted != 0) {
    wanted = std::clamp<std::uint64_t>(wanted, 1, std::max<std::uint64_t>(size, 1));
    return (size + wanted - 1) / wanted == scales ? wanted : 0;
  }
  // The last block may be cut: 192 rows with two scales are 128 and 64, and not 96 each. Blocks of
  // an equal size that is a power of two could not be those of a larger one.
  if (size % scales != 0) return 0;
  return scales == 1 || std::has_single_bit(size / scales) ? size / scales : 0;
}

// The blocks that share a scale, by the shape of the scales; false when it fits no blocks.
bool set_grid(const Tensor& scale, const Matrices& all, std::size_t rank,
              const std::optional<QuantizationConfig::Block>& wanted, QuantizedLayout& layout) {
  const std::span shape = scale.shape;
  layout.matrices = all.matrices;
  layout.rows = all.rows;
  layout.columns = all.columns;
  const auto grid = [&](std::uint64_t rows, std::uint64_t columns, std::uint64_t block_rows,
                        std::uint64_t block_columns) {
    layout.grid_rows = rows;
    layout.grid_columns = columns;
    layout.block_rows = std::max<std::uint64_t>(block_rows, 1);
    layout.block_columns = std::max<std::uint64_t>(block_columns, 1);
    return block_rows != 0 && block_columns != 0;
  };
  if (scale.elements() == 1) {  // of the tensor
    if (all.matrices != 1) {
      layout.rows *= layout.matrices;
      layout.matrices = 1;
    }
    return grid(1, 1, std::max<std::uint64_t>(layout.rows, 1),
                std::max<std::uint64_t>(all.columns, 1));
  }
  if (shape.size() == 1 && rank == 2 && shape[0] == all.rows) {  // of rows
    return grid(all.rows, 1, 1, std::max<std::uint64_t>(all.columns, 1));
  }
  if (shape.size() == 1 && rank == 3 && shape[0] == all.matrices) {  // of experts
    return grid(1, 1, std::max<std::uint64_t>(all.rows, 1),
                std::max<std::uint64_t>(all.columns, 1));
  }
  if (shape.size() == 2 && rank == 3 && shape[0] == all.matrices && shape[1] == all.rows) {
    return grid(all.rows, 1, 1, std::max<std::uint64_t>(all.columns, 1));
  }
  if (shape.size() != rank || rank < 2) return false;
  const Matrices scales = matrices_of(shape);
  if (scales.matrices != all.matrices) return false;
  if (wanted) {
    const std::uint64_t rows = block_along(all.rows, scales.rows, wanted->first);
    const std::uint64_t columns = block_along(all.columns, scales.columns, wanted->second);
    return rows != 0 && columns != 0 && grid(scales.rows, scales.columns, rows, columns);
  }
  return grid(scales.rows, scales.columns, block_along(all.rows, scales.rows, 0),
              block_along(all.columns, scales.columns, 0));
}

// The same with the type of the scales, which are `count` a matrix.
void set_scale(const Tensor& weight, const Tensor& scale, DType type, QuantizedLayout& layout) {
  const auto packing = packed(typed(type), layout.grid_rows, layout.grid_columns);
  if (!packing) refuse_companion(weight, scale);
  layout.scale = *packing;
}

// The sizes of blocks that the config may mean for this weight.
std::vector<QuantizationConfig::Block> blocks_in(const QuantizationConfig& config,
                                                 std::string_view weight, MatchingWork& work) {
  std::vector<QuantizationConfig::Block> blocks;
  if (config.weight_block) blocks.push_back(*config.weight_block);
  const std::string_view module =
      weight.ends_with(".weight") ? without_ending(weight, ".weight") : weight;
  for (const QuantizationConfig::Group* const group : groups_of(config, module, work).groups) {
    if (group->block) blocks.push_back(*group->block);
    if (group->group_size && group->strategy != "channel" && group->strategy != "tensor" &&
        group->strategy != "block") {
      blocks.emplace_back(1, *group->group_size);
    }
  }
  return blocks;
}

void set_blocks(const Finder& finder, std::uint32_t number, const Tensor& weight,
                const Tensor& scale, const Matrices& all, QuantizedLayout& layout) {
  const QuantizationConfig& config = finder.config(number);
  const std::size_t rank = weight.shape.size();
  const std::vector<QuantizationConfig::Block> blocks =
      blocks_in(config, weight.name, finder.work());
  bool fits = false;
  for (const QuantizationConfig::Block& block : blocks) {
    QuantizedLayout other = layout;
    if (!set_grid(scale, all, rank, block, other)) continue;
    if (fits && other != layout) {
      refuse_companion(weight, scale, "blocks of two sizes that the config names have such scales");
    }
    fits = true;
    layout = other;
  }
  // Checkpoints mix sizes of blocks, and the config may name one: the grid tells the others.
  if (fits || set_grid(scale, all, rank, std::nullopt, layout)) return;
  if (blocks.empty() && config.text.empty()) {
    refuse_companion(weight, scale,
                     "no blocks whose sizes are powers of two have such scales; config.json, which "
                     "may tell their "
                     "size, is " +
                         (config.unreadable.empty() ? std::string("not there")
                                                    : "not readable: " + config.unreadable));
  }
  refuse_companion(weight, scale);
}

// The companion with scales; nullopt when there is none.
std::optional<std::uint32_t> scale_of(const Finder& finder, const Tensor& weight) {
  std::optional<std::uint32_t> found;
  const auto add = [&](std::string_view base, std::string_view ending) {
    const auto number = finder.find(base, ending);
    if (!number) return;
    if (found) {
      Finder::refuse(weight, "has two scales, \"" + std::string(finder.tensor(*found).name) +
                                 "\" and \"" + std::string(finder.tensor(*number).name) + "\"");
    }
    found = number;
  };
  add(weight.name, "_scale_inv");
  add(weight.name, "_scale");
  add(weight.name, "_weight_scale");  // of experts in one tensor, whose names have no ".weight"
  if (!weight.name.ends_with(".weight")) return found;
  const std::string_view base = without_ending(weight.name, ".weight");
  for (const char* const ending : {".scale", ".scale_weight", ".qscale_weight"}) add(base, ending);
  return found;
}

// Sets name, shape, weight and scale of `found`; `type` is that of the scale's values.
void fill(const Tensor& weight, std::uint32_t number, std::uint32_t scale,
          std::span<const std::uint64_t> shape, QuantizedWeight& found) {
  found.name = weight.name;
  found.shape.assign(shape.begin(), shape.end());
  found.input(Role::kWeight) = number;
  found.input(Role::kScale) = scale;
}

void pack_weight(const Tensor& weight, const Packing& packing, QuantizedLayout& layout) {
  const auto whole = packed(packing, layout.rows, layout.columns);
  if (!whole) Finder::refuse(weight, "its size overflows");
  layout.weight = *whole;
}

// The shape of the values of a tensor of bytes that hold two codes each.
std::vector<std::uint64_t> unpacked_shape(const Tensor& weight) {
  std::vector<std::uint64_t> shape(weight.shape.begin(), weight.shape.end());
  if (shape.empty() || __builtin_mul_overflow(shape.back(), 2, &shape.back())) {
    Finder::refuse(weight, "its shape is not that of packed weights");
  }
  return shape;
}

// Microscaling: groups of `group` columns. Refuses any other shape of the scales.
void set_groups(const Tensor& weight, const Tensor& scale, const Matrices& all, std::uint64_t group,
                DType type, QuantizedLayout& layout) {
  const Matrices scales = matrices_of(scale.shape);
  if (scale.shape.size() != weight.shape.size() || scales.matrices != all.matrices ||
      scales.rows != all.rows || all.columns % group != 0 ||
      scales.columns != all.columns / group) {
    refuse_companion(weight, scale,
                     "a scale for each " + std::to_string(group) + " columns is expected");
  }
  layout.matrices = all.matrices;
  layout.rows = all.rows;
  layout.columns = all.columns;
  layout.grid_rows = all.rows;
  layout.grid_columns = scales.columns;
  layout.block_columns = group;
  set_scale(weight, scale, type, layout);
}

// Llama 4's experts of fbgemm: the scales are of the last dimension, whatever their own shape is.
bool is_of_last_dimension(const QuantizationConfig& config, const Tensor& weight,
                          const Tensor& scale) {
  if (config.method != "fbgemm_fp8" || weight.shape.size() != 3 || scale.shape.size() != 3) {
    return false;
  }
  const std::uint64_t columns = weight.shape[2];
  return scale.shape[0] == weight.shape[0] && ((scale.shape[1] == columns && scale.shape[2] == 1) ||
                                               (scale.shape[1] == 1 && scale.shape[2] == columns));
}

void set_last_dimension(const Tensor& weight, QuantizedLayout& layout) {
  const Matrices all = matrices_of(weight.shape);
  layout.matrices = all.matrices;
  layout.rows = all.rows;
  layout.columns = all.columns;
  layout.grid_rows = 1;
  layout.grid_columns = all.columns;
  layout.block_rows = std::max<std::uint64_t>(all.rows, 1);
}

// ModelOpt's NVFP4 experts that are packed along the rows: [E,in/2,out] with scales [E,in/16,out].
bool set_down(const Tensor& weight, const Tensor& scale, QuantizedWeight& found) {
  const Matrices bytes = matrices_of(weight.shape);
  const Matrices scales = matrices_of(scale.shape);
  std::uint64_t rows = 0;
  if (weight.shape.size() != 3 || scale.shape.size() != 3 || scales.matrices != bytes.matrices ||
      scales.columns != bytes.columns || __builtin_mul_overflow(bytes.rows, 2, &rows) ||
      rows % 16 != 0 || scales.rows != rows / 16) {
    return false;
  }
  found.shape = {bytes.matrices, rows, bytes.columns};
  found.layout.matrices = bytes.matrices;
  found.layout.rows = rows;
  found.layout.columns = bytes.columns;
  found.layout.grid_rows = scales.rows;
  found.layout.grid_columns = scales.columns;
  found.layout.block_rows = 16;
  set_scale(weight, scale, DType::kF8E4M3, found.layout);
  return true;
}

// Whether the rows of an expert are those of the gate, then those of the other projection.
bool has_gates_first(std::string_view name) {
  return name.find("gate_up_proj") != std::string_view::npos ||
         name.find("w13") != std::string_view::npos;
}

// NVFP4's second scale: of the tensor, of each expert, or of the gates and the others of an expert.
void set_factor(const Tensor& weight, const Tensor& factor, bool is_down, QuantizedLayout& layout) {
  const std::span shape = factor.shape;
  if (factor.dtype != DType::kF32) refuse_companion(weight, factor);
  if (factor.elements() == 1) return;
  const bool is_of_experts = !shape.empty() && has_rank(weight, 3) && shape[0] == layout.matrices;
  const bool is_of_halves = shape.size() == 2 && shape[1] == 2 && !is_down &&
                            layout.rows % 2 == 0 && has_gates_first(weight.name);
  if (!is_of_experts || (shape.size() != 1 && !is_of_halves)) refuse_companion(weight, factor);
  layout.factor_is_of_matrix = true;
  layout.factor_is_of_half = is_of_halves;
}

void add_pre_quant_scale(const Finder& finder, const Tensor& weight, QuantizedWeight& found) {
  if (!weight.name.ends_with(".weight")) return;
  add_column_scale(finder, weight, without_ending(weight.name, ".weight"), ".pre_quant_scale",
                   found);
}

}  // namespace

bool find_fp8(const Finder& finder, std::uint32_t number, const Tensor& tensor,
              QuantizedWeight& found) {
  if (!has_fp8_codes(tensor.dtype)) return false;
  const auto scale_number = scale_of(finder, tensor);
  if (!scale_number) return false;
  const Tensor scale = finder.tensor(*scale_number);
  const auto type = scale_type(scale.dtype);
  if (!type) refuse_companion(tensor, scale, "no type of a scale");
  fill(tensor, number, *scale_number, tensor.shape, found);
  if (is_of_last_dimension(finder.config(number), tensor, scale)) {
    set_last_dimension(tensor, found.layout);
  } else {
    set_blocks(finder, number, tensor, scale, matrices_of(tensor.shape), found.layout);
  }
  set_scale(tensor, scale, *type, found.layout);
  if (finder.config(number).is_divided_by_scale) {
    if (!scale.name.ends_with("_scale_inv")) {
      refuse_companion(tensor, scale, "it is no \"_scale_inv\", as config.json says");
    }
    found.layout.is_divided_by_scale = true;
  }
  pack_weight(tensor, typed(tensor.dtype), found.layout);
  add_pre_quant_scale(finder, tensor, found);
  return true;
}

bool find_int8(const Finder& finder, std::uint32_t number, const Tensor& tensor,
               QuantizedWeight& found) {
  if (tensor.dtype != DType::kI8) return false;
  const auto scale_number = scale_of(finder, tensor);
  if (!scale_number) return false;
  const Tensor scale = finder.tensor(*scale_number);
  const auto type = scale_type(scale.dtype);
  if (!type) refuse_companion(tensor, scale, "no type of a scale");
  // Bytes that are powers of two scale FP4, also where two of it are stored as one I8.
  if (*type == DType::kF8E8M0) refuse_companion(tensor, scale, "no type of a scale of INT8");
  if (finder.config(number).is_divided_by_scale) {
    Finder::refuse(tensor, "is INT8, and config.json has weight_scale_semantics, which is of FP8");
  }
  fill(tensor, number, *scale_number, tensor.shape, found);
  set_blocks(finder, number, tensor, scale, matrices_of(tensor.shape), found.layout);
  set_scale(tensor, scale, *type, found.layout);
  pack_weight(tensor, {.codes = Codes::kSigned}, found.layout);
  add_pre_quant_scale(finder, tensor, found);
  const auto zero_number = finder.find(tensor.name, "_zero_point");
  if (!zero_number) {
    if (tensor.name.ends_with(".weight")) {
      refuse_without_zero_points(finder, number, tensor, tensor.name);
    }
    return true;
  }
  const Tensor zero = finder.tensor(*zero_number);
  if (zero.dtype != DType::kI8 || !std::ranges::equal(zero.shape, scale.shape)) {
    refuse_companion(tensor, zero, "zero points like the scales are expected");
  }
  found.input(Role::kZero) = *zero_number;
  found.layout.zero =
      *packed({.codes = Codes::kSigned}, found.layout.grid_rows, found.layout.grid_columns);
  return true;
}

bool find_fp4(const Finder& finder, std::uint32_t number, const Tensor& tensor,
              QuantizedWeight& found) {
  if (tensor.dtype != DType::kU8 && tensor.dtype != DType::kI8) return false;
  const auto scale_number = scale_of(finder, tensor);
  if (!scale_number) return false;
  const Tensor scale = finder.tensor(*scale_number);
  // I8 with scales of another type is INT8; DeepSeek-V4's experts are FP4 in I8.
  if (tensor.dtype == DType::kI8 && scale.dtype != DType::kF8E8M0) return false;
  const std::vector<std::uint64_t> shape = unpacked_shape(tensor);
  fill(tensor, number, *scale_number, shape, found);
  const Matrices all = matrices_of(shape);
  bool is_down = false;
  if (scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0) {
    set_groups(tensor, scale, all, 32, DType::kF8E8M0, found.layout);
  } else if (scale.dtype == DType::kF8E4M3) {
    is_down = set_down(tensor, scale, found);
    if (!is_down) set_groups(tensor, scale, all, 16, DType::kF8E4M3, found.layout);
    // Padded to tiles, scales of these shapes would have the same.
    const bool may_be_tiles = all.rows % 128 == 0 && all.columns % 64 == 0;
    if (may_be_tiles) refuse_of_modelopt_for_comfy(finder, number, tensor);
    auto factor_number = finder.find(tensor.name, "_scale_2");
    if (!factor_number) factor_number = finder.find(tensor.name, "_weight_scale_2");
    if (!factor_number) {
      Finder::refuse(
          tensor, "NVFP4 without its second scale, \"" + std::string(tensor.name) + "_scale_2\"");
    }
    set_factor(tensor, finder.tensor(*factor_number), is_down, found.layout);
    found.input(Role::kFactor) = *factor_number;
  } else {
    refuse_companion(tensor, scale,
                     "bytes with such scales are no FP4; ModelOpt's INT4, which is packed along "
                     "the rows, is not supported");
  }
  pack_weight(tensor, is_down ? fields(Codes::kF4Down, 4) : typed(DType::kF4), found.layout);
  add_pre_quant_scale(finder, tensor, found);
  return true;
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

}  // namespace stfs
