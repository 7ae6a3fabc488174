#include "core/layer/quantised/quantized_layout.h"

#include "core/stored/tensor.h"

#include <algorithm>
#include <utility>

namespace stfs {
namespace {

// The maximum number of indexed rows or columns. Each read loads the whole index, so this limits
// its memory.
constexpr std::uint64_t kMaxIndexed = std::uint64_t{1} << 20;

// Returns the bytes of all matrices of a packing, or nullopt on overflow or if the pitch is too
// small.
std::optional<std::uint64_t> bytes_of(const Packing& packing, std::uint64_t matrices,
                                      std::uint64_t rows, std::uint64_t columns) {
  const auto row = row_bytes(packing, rows, columns);
  const auto matrix = matrix_bytes(packing, rows, columns);
  std::uint64_t all = 0;
  if (!row || !matrix || packing.pitch < *row) return std::nullopt;
  if (packing.matrix != 0 && packing.matrix != *matrix) return std::nullopt;
  const std::uint64_t count = packing.matrix == 0 ? std::min<std::uint64_t>(matrices, 1) : matrices;
  if (__builtin_mul_overflow(*matrix, count, &all)) return std::nullopt;
  return all;
}

}  // namespace

void QuantizedInput::missing(std::uint64_t offset, std::uint64_t bytes,
                             std::vector<Extent>& missing) const {
  if (!stored_) {
    for (const Extent& extent : content_.missing(offset, bytes)) missing.push_back(extent);
    return;
  }
  const Extent range{stored_->source, stored_->offset + offset, bytes};
  if (!range.source->has({range.offset, range.length})) missing.push_back(range);
}

std::optional<Role> misfit(const QuantizedLayout& layout, const InputLengths& inputs) {
  const auto input = [&](Role role) { return inputs[static_cast<std::size_t>(role)]; };
  std::uint64_t elements = 0;
  if (__builtin_mul_overflow(layout.rows, layout.columns, &elements) ||
      __builtin_mul_overflow(elements, layout.matrices, &elements) || elements > kMaxElements) {
    return Role::kWeight;
  }
  const auto fits = [&](Role role, const Packing& packing, std::uint64_t rows,
                        std::uint64_t columns) {
    return !input(role) || bytes_of(packing, layout.matrices, rows, columns) == input(role);
  };
  const auto has = [&](Role role, std::uint64_t bytes) {
    return !input(role) || input(role) == bytes;
  };
  if (!fits(Role::kWeight, layout.weight, layout.rows, layout.columns)) return Role::kWeight;
  if (layout.grid_rows == 0) return std::nullopt;
  // An index determines the blocks, and each of its elements is checked when it is used.
  const bool has_index = input(Role::kIndex).has_value();
  const auto covers = [](std::uint64_t grid, std::uint64_t block, std::uint64_t size) {
    return block > 0 && (size == 0 || (size - 1) / block < grid);
  };
  if (!covers(layout.grid_rows, layout.block_rows, layout.rows) ||
      !covers(layout.grid_columns, layout.block_columns, layout.columns)) {
    return Role::kScale;
  }
  for (const auto& [role, packing] :
       {std::pair(Role::kScale, &layout.scale), std::pair(Role::kZero, &layout.zero),
        std::pair(Role::kBias, &layout.bias)}) {
    if (!fits(role, *packing, layout.grid_rows, layout.grid_columns)) return role;
  }
  if (!input(Role::kScale)) return Role::kScale;
  const std::uint64_t indexed = layout.index_is_of_rows ? layout.rows : layout.columns;
  if (has_index && (indexed > kMaxIndexed || !has(Role::kIndex, indexed * sizeof(std::int32_t)))) {
    return Role::kIndex;
  }
  const std::uint64_t factors = layout.factor_is_of_matrix ? layout.matrices : 1;
  const std::uint64_t parts = layout.factor_is_of_half ? 2 : 1;
  if (!has(Role::kFactor, factors * parts * type_info(layout.factor_type).block_bytes)) {
    return Role::kFactor;
  }
  std::uint64_t row_factors = 0;
  if (__builtin_mul_overflow(layout.rows, layout.matrices, &row_factors) ||
      __builtin_mul_overflow(row_factors, type_info(layout.row_factor_type).block_bytes,
                             &row_factors) ||
      !has(Role::kRowFactor, row_factors) ||
      (input(Role::kRowFactor) && layout.is_divided_by_127)) {
    return Role::kRowFactor;
  }
  const bool has_halves = layout.block_rows == 1 && layout.rows % 2 == 0 && !has_index;
  if (layout.factor_is_of_half && !has_halves) return Role::kFactor;
  if (input(Role::kColumnScale) &&
      (layout.column_scale.matrix != 0 ||
       !fits(Role::kColumnScale, layout.column_scale, 1, layout.columns))) {
    return Role::kColumnScale;
  }
  if (input(Role::kNestedScale)) {
    const std::uint64_t block = layout.nested_block;
    if (block == 0 || layout.grid_rows != 1 || layout.matrices != 1) return Role::kNestedScale;
    const std::uint64_t count =
        layout.grid_columns == 0 ? 0 : (layout.grid_columns - 1) / block + 1;
    if (!has(Role::kNestedScale, count * sizeof(float))) return Role::kNestedScale;
    if (!has(Role::kLevels, 256 * sizeof(float)) || !input(Role::kLevels)) {
      return Role::kLevels;
    }
  }
  if (!has(Role::kMap, 16 * sizeof(float))) return Role::kMap;
  return std::nullopt;
}

}  // namespace stfs
