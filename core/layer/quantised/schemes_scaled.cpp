// Weights that consist of typed numbers (FP8, FP4 or INT8) and a tensor of scales.
#include "core/base/text.h"
#include "core/layer/quantised/schemes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace stfs {
namespace {

using Block = QuantizationConfig::Block;

// Returns the rows or columns of a block if there are `scales` scales along a dimension of `size`
// elements, or 0 if they do not fit. `wanted` is the size that config.json names, or 0.
std::uint64_t block_along(std::uint64_t size, std::uint64_t scales, std::uint64_t wanted) {
  if (scales == 0) return size == 0 ? 1 : 0;
  if (wanted != 0) {
    wanted = std::clamp<std::uint64_t>(wanted, 1, std::max<std::uint64_t>(size, 1));
    return (size + wanted - 1) / wanted == scales ? wanted : 0;
  }
  // The last block may be cut: two scales for 192 rows mean blocks of 128 and 64, not two blocks of
  // 96. If equal blocks have a power of two as their size, this size is certain, because with any
  // larger power of two there would be fewer scales.
  if (size % scales != 0) return 0;
  return scales == 1 || std::has_single_bit(size / scales) ? size / scales : 0;
}

// The blocks that share a scale, and the stored matrices.
struct Grid {
  Matrices stored;
  std::uint64_t rows, columns, block_rows, block_columns;

  bool operator==(const Grid&) const = default;
};

// Determines the blocks by the shape of the scales. Returns nullopt if they fit no blocks. `wanted`
// is the rows and columns that config.json names, or 0.
std::optional<Grid> grid_of(const Tensor& weight, const Tensor& scale, const Block& wanted) {
  const Matrices all = matrices_of(weight.shape);
  const std::span shape = scale.shape;
  const std::size_t rank = weight.shape.size();
  if (scale.elements() == 1) {  // one scale for the whole tensor
    const Matrices one{.rows = all.rows * all.matrices, .columns = all.columns};
    return Grid{one, 1, 1, one.rows, one.columns};
  }
  const bool is_of_rows =
      (shape.size() == 1 && rank == 2 && shape[0] == all.rows) ||
      (shape.size() == 2 && rank == 3 && shape[0] == all.matrices && shape[1] == all.rows);
  if (is_of_rows) return Grid{all, all.rows, 1, 1, all.columns};
  const bool is_of_experts = rank == 3 && !shape.empty() && shape.size() < rank &&
                             shape[0] == all.matrices && scale.elements() == all.matrices;
  if (is_of_experts) return Grid{all, 1, 1, all.rows, all.columns};
  Matrices scales = matrices_of(shape);
  Block size = wanted;
  // ModelOpt's FP8_PB_WO: blocks of 128 rows and columns, with scales [rows, 1, columns, 1].
  const bool has_ones =
      rank >= 2 && shape.size() == rank + 2 && shape[rank - 1] == 1 && shape[rank + 1] == 1;
  if (has_ones) {
    scales = {matrices_of(shape.first(rank)).matrices, shape[rank - 2], shape[rank]};
    if (size == Block()) size = {128, 128};
  }
  if ((shape.size() != rank && !has_ones) || rank < 2 || scales.matrices != all.matrices) {
    return std::nullopt;
  }
  const std::uint64_t rows = block_along(all.rows, scales.rows, size.first);
  const std::uint64_t columns = block_along(all.columns, scales.columns, size.second);
  if (rows == 0 || columns == 0) return std::nullopt;
  return Grid{all, scales.rows, scales.columns, rows, columns};
}

// Returns the block sizes that the config may mean for this weight.
std::vector<Block> blocks_in(const Candidate& weight) {
  const QuantizationConfig& config = weight.config();
  std::vector<Block> blocks;
  if (config.weight_block) blocks.push_back(*config.weight_block);
  for (const QuantizationConfig::Group* const group :
       groups_of(config, weight.module(), weight.finder.work()).groups) {
    if (group->block) blocks.push_back(*group->block);
    if (group->group_size && group->strategy != "channel" && group->strategy != "tensor" &&
        group->strategy != "block") {
      blocks.emplace_back(1, *group->group_size);
    }
  }
  return blocks;
}

Grid blocks_of(const Candidate& weight, const Tensor& scale) {
  const std::vector<Block> blocks = blocks_in(weight);
  std::optional<Grid> found;
  for (const Block& block : blocks) {
    const auto grid = grid_of(weight.tensor, scale, block);
    if (found && grid && *found != *grid) {
      weight.refuse(scale, "the scales fit two of the block sizes in the config");
    }
    if (grid) found = grid;
  }
  // Checkpoints mix block sizes, and the config may name only one of them. The grid determines the
  // others.
  if (!found) found = grid_of(weight.tensor, scale, {});
  if (!found) {
    const QuantizationConfig& config = weight.config();
    if (!blocks.empty() || !config.text.empty()) weight.refuse(scale);
    weight.refuse(scale,
                  "the scales fit no block sizes that are powers of two; config.json, which may "
                  "give the sizes, is " +
                      (config.unreadable.empty() ? std::string("missing")
                                                 : "not readable: " + config.unreadable));
  }
  return *found;
}

// Returns the companion with scales, or nullopt if the weight has none. Refuses a weight with two.
std::optional<Companion> scale_of(const Candidate& weight) {
  std::optional<Companion> found;
  const auto add = [&](std::string_view base, std::string_view ending) {
    const auto scale = weight.find(base, ending);
    if (!scale) return;
    if (found) {
      weight.refuse("has two scales, \"" + std::string(found->name) + "\" and \"" +
                    std::string(scale->name) + "\"");
    }
    found = scale;
  };
  const std::string_view name = weight.tensor.name;
  add(name, "_scale_inv");
  add(name, "_scale");
  // For experts in one tensor, which have no ".weight" in their names.
  add(name, "_weight_scale");
  if (!name.ends_with(".weight")) return found;
  for (const char* const ending : {".scale", ".scale_weight", ".qscale_weight"}) {
    add(weight.module(), ending);
  }
  return found;
}

// Returns true for Llama 4's experts of fbgemm. Their scales belong to the last dimension, in
// either of two shapes.
bool is_of_last_dimension(const Candidate& weight, const Tensor& scale) {
  if (weight.config().method != "fbgemm_fp8" || !has_rank(weight.tensor, 3) ||
      !has_rank(scale, 3)) {
    return false;
  }
  const std::uint64_t columns = weight.tensor.shape[2];
  return scale.shape[0] == weight.tensor.shape[0] &&
         ((scale.shape[1] == columns && scale.shape[2] == 1) ||
          (scale.shape[1] == 1 && scale.shape[2] == columns));
}

// Takes elements with one scale per block.
void take_blocks(Candidate& weight, const Companion& scale, DType type, const Grid& grid,
                 const Packing& codes) {
  weight.set_result(weight.tensor.name, weight.tensor.shape);
  weight.set_codes(codes, grid.stored);
  weight.set_grid(grid.rows, grid.columns, grid.block_rows, grid.block_columns);
  weight.take_on_grid(Role::kScale, scale, typed(type));
}

// Refuses codes of compressed-tensors if the config only has groups of another type.
void refuse_other_groups_alone(const Candidate& weight, std::string_view other) {
  const QuantizationConfig& config = weight.config();
  const auto is_other = [&](const auto& group) { return group.type == other; };
  if (config.method == "compressed-tensors" && !config.groups.empty() &&
      std::ranges::all_of(config.groups, is_other)) {
    weight.refuse_other_type("only \"config_groups\" of type " + in_quotes(other));
  }
}

// Refuses FP8 codes that are stored as integers.
void refuse_int8_of_fp8(const Candidate& weight) {
  const QuantizationConfig& config = weight.config();
  const std::string& method = config.method;
  if (method == "fp8" || method == "fbgemm_fp8") {
    weight.refuse_other_type("quant_method " + in_quotes(method));
  }
  if (config.algorithm.starts_with("fp8")) {
    weight.refuse_other_type("\"quant_algo\" " + in_quotes(config.algorithm));
  }
  refuse_other_groups_alone(weight, "float");
}

// Takes ModelOpt's NVFP4 experts that are packed along the rows: [E,in/2,out] with scales
// [E,in/16,out]. Returns false if the shapes are different.
bool take_down(Candidate& weight, const Companion& scale) {
  Matrices stored = matrices_of(weight.tensor.shape);
  const Matrices scales = matrices_of(scale.shape);
  if (!has_rank(weight.tensor, 3) || !has_rank(scale, 3) || scales.matrices != stored.matrices ||
      scales.columns != stored.columns || __builtin_mul_overflow(stored.rows, 2, &stored.rows) ||
      stored.rows % kNv.columns != 0 || scales.rows != stored.rows / kNv.columns) {
    return false;
  }
  weight.set_result(weight.tensor.name, std::array{stored.matrices, stored.rows, stored.columns});
  weight.set_codes(fields(Codes::kF4Down, 4), stored);
  weight.set_grid(scales.rows, scales.columns, kNv.columns, 1);
  weight.take_on_grid(Role::kScale, scale, typed(kNv.type));
  return true;
}

// Takes two codes per byte along the columns, with a scale per group of columns.
void take_pairs(Candidate& weight, const Companion& scale, const Microscales& scales,
                const Matrices& stored) {
  weight.refuse_other_groups(scale, scales, stored);
  weight.set_result(weight.tensor.name, with_last(weight.tensor.shape, stored.columns));
  weight.set_codes(typed(DType::kF4), stored);
  weight.take_groups(scale, scales);
}

// Returns true if the first half of an expert's rows are the gate, and the second half the other
// projection.
bool has_gates_first(std::string_view name) {
  return name.find("gate_up_proj") != std::string_view::npos ||
         name.find("w13") != std::string_view::npos;
}

// Takes NVFP4's second scale: one for the tensor, one per expert, or two per expert, for the gate
// and for the other projection.
void take_second_scale(Candidate& weight, const Companion& factor, bool is_down) {
  QuantizedLayout& layout = weight.found.layout;
  const std::span shape = factor.shape;
  const bool is_of_experts =
      !shape.empty() && has_rank(weight.tensor, 3) && shape[0] == layout.matrices;
  const bool is_of_halves = shape.size() == 2 && shape[1] == 2 && !is_down &&
                            layout.rows % 2 == 0 && has_gates_first(weight.tensor.name);
  if (factor.dtype == DType::kF32 && factor.elements() != 1 && is_of_experts && is_of_halves) {
    layout.factor_is_of_matrix = layout.factor_is_of_half = true;
    return weight.take(Role::kFactor, factor);
  }
  if (factor.elements() != 1 && (!is_of_experts || shape.size() != 1)) weight.refuse(factor);
  weight.take_factor(factor, QuantizedLayout::Factor::kMultiplies);
}

// Returns the companion for take_second_scale(). transformers gives it the name that
// compressed-tensors uses for a divisor, but multiplies by it.
Companion second_scale_of(const Candidate& weight, const Tensor& scale) {
  const bool is_of_transformers =
      weight.config().method == "nvfp4" && scale.name.ends_with("_scale_inv");
  for (const char* const ending :
       {"_scale_2", "_weight_scale_2", "_global_scale", "_weight_global_scale"}) {
    const auto factor = weight.find(weight.tensor.name, ending);
    if (factor && (is_of_transformers || std::string_view(ending).ends_with("_2"))) return *factor;
  }
  weight.refuse("NVFP4 without its second scale, \"" + std::string(weight.tensor.name) +
                (is_of_transformers ? "_global_scale\"" : "_scale_2\""));
}

bool take_pre_quant_scale(Candidate& weight) {
  if (weight.tensor.name.ends_with(".weight")) {
    weight.take_column_scale(weight.module(), ".pre_quant_scale");
  }
  return true;
}

}  // namespace

bool find_fp8(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (!is_fp8(tensor.dtype)) return false;
  const auto scale = scale_of(weight);
  if (!scale) return false;
  const auto type = scale_type(scale->dtype);
  if (!type) weight.refuse(*scale, "not a valid type for a scale");
  const std::string& told = weight.config().fp8;
  const bool is_e5m2 = tensor.dtype == DType::kF8E5M2 || tensor.dtype == DType::kF8E5M2Fnuz;
  if (told.find(is_e5m2 ? "e4m3" : "e5m2") != std::string::npos) {
    weight.refuse_other_type("\"fmt\" " + in_quotes(told));
  }
  if (scale->name.ends_with(".weight_scale")) refuse_other_groups_alone(weight, "int");
  const Matrices all = matrices_of(tensor.shape);
  const Grid grid = is_of_last_dimension(weight, *scale) ? Grid{all, 1, all.columns, all.rows, 1}
                                                         : blocks_of(weight, *scale);
  take_blocks(weight, *scale, *type, grid, typed(tensor.dtype));
  if (weight.config().is_divided_by_scale) {
    if (!scale->name.ends_with("_scale_inv")) {
      weight.refuse(*scale, "config.json requires a \"_scale_inv\"");
    }
    weight.found.layout.is_divided_by_scale = true;
  }
  return take_pre_quant_scale(weight);
}

bool find_int8(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  if (tensor.dtype != DType::kI8) return false;
  const auto scale = scale_of(weight);
  if (!scale) return false;
  const auto type = scale_type(scale->dtype);
  if (!type) weight.refuse(*scale, "not a valid type for a scale");
  // U8 or E8M0 scales belong to FP4, even if two FP4 codes are stored as one I8.
  if (*type == kMx.type) weight.refuse(*scale, "not a valid type for a scale of INT8");
  if (weight.config().is_divided_by_scale) {
    weight.refuse("is INT8, but config.json has weight_scale_semantics, which belongs to FP8");
  }
  refuse_int8_of_fp8(weight);
  const Packing codes{.codes = Codes::kSigned};
  take_blocks(weight, *scale, *type, blocks_of(weight, *scale), codes);
  take_pre_quant_scale(weight);
  const auto zero = weight.find(tensor.name, "_zero_point");
  if (!zero) {
    if (tensor.name.ends_with(".weight")) weight.refuse_without_zero_points(tensor.name);
    return true;
  }
  if (zero->dtype != DType::kI8 || !std::ranges::equal(zero->shape, scale->shape)) {
    weight.refuse(*zero, "expected I8 zero points with the shape of the scales");
  }
  weight.take_on_grid(Role::kZero, *zero, codes);
  return true;
}

bool find_fp4(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  const bool is_typed = tensor.dtype == DType::kF4;
  if (tensor.dtype != DType::kU8 && tensor.dtype != DType::kI8 && !is_typed) return false;
  const auto scale = scale_of(weight);
  if (!scale) return false;
  // I8 with scales of another type is INT8. DeepSeek-V4's experts, and files of transformers, store
  // FP4 in I8.
  if (tensor.dtype == DType::kI8 && scale->dtype != kMx.type && scale->dtype != kNv.type) {
    return false;
  }
  Matrices stored = matrices_of(tensor.shape);
  if (tensor.shape.empty()) weight.refuse("its shape does not fit packed weights");
  if (!is_typed) stored.columns = weight.times(stored.columns, 2);
  if (scale_type(scale->dtype) == kMx.type) {
    take_pairs(weight, *scale, kMx, stored);
  } else if (scale->dtype == kNv.type) {
    const bool is_down = !is_typed && take_down(weight, *scale);
    if (!is_down) take_pairs(weight, *scale, kNv, stored);
    // For these sizes, scales that were padded to tiles would have the same shape.
    const bool may_be_tiles = stored.rows % 128 == 0 && stored.columns % 64 == 0;
    if (may_be_tiles) weight.refuse_of_modelopt_for_comfy();
    take_second_scale(weight, second_scale_of(weight, *scale), is_down);
  } else {
    weight.refuse(*scale,
                  "bytes with such scales are not FP4; ModelOpt's INT4, which is packed along the "
                  "rows, is not supported");
  }
  return take_pre_quant_scale(weight);
}

// --- gpt-oss

bool find_gpt_oss(Candidate& weight) {
  const Tensor& tensor = weight.tensor;
  const bool is_transposed = tensor.name.ends_with("_blocks");
  if (!is_transposed && !tensor.name.ends_with(".blocks")) return false;
  const std::string_view base = without_ending(tensor.name, "_blocks");
  const std::string_view ending = is_transposed ? "_scales" : ".scales";
  const bool has_blocks =
      tensor.dtype == DType::kU8 && has_rank(tensor, 4) && tensor.shape[3] == 16;
  if (!has_blocks && !weight.find(base, ending)) return false;
  const Companion scale = weight.need(base, ending);
  if (!has_blocks) weight.refuse(scale, "expected U8 blocks of 16 bytes");
  if (scale.dtype != DType::kU8 || !std::ranges::equal(scale.shape, tensor.shape.first(3))) {
    weight.refuse(scale, "expected a scale for each block of 32");
  }
  const Matrices stored{tensor.shape[0], tensor.shape[1],
                        weight.times(tensor.shape[2], kMx.columns)};
  weight.set_codes(typed(DType::kF4), stored);
  weight.found.layout.is_transposed = is_transposed;
  weight.take_groups(scale, kMx);
  weight.set_result(base, std::array{stored.matrices, stored.rows, stored.columns});
  if (is_transposed) std::swap(weight.found.shape[1], weight.found.shape[2]);
  return true;
}

}  // namespace stfs
