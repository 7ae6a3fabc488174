#include "core/layer/quantised/quantized_part.h"

#include "core/layer/quantised/row_loops.h"
#include "core/source/source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kAlignedGrid = 32;  // a multiple of every alignment of a grid
// The maximum gap in bytes between two runs that are read together, because a read costs as much as
// this many bytes.
constexpr std::uint64_t kSmallGap = 2048;

InputWindow window_of(const Packing& p, const MatrixPart& part) {
  if (p.codes == Codes::kByColumn) {
    Packing columns = p;
    columns.codes = Codes::kTyped;
    return window_of(columns, {.matrix = part.matrix,
                               .row = part.column,
                               .rows = part.columns,
                               .column = part.row,
                               .columns = part.rows});
  }
  const auto [first, last] = stored_rows(p, part.row, part.row + part.rows);
  const std::uint64_t begin = lead(p, part.column);
  InputWindow window{.begin = part.matrix * p.matrix + first * p.pitch + begin,
                     .run = tail(p, part.column + part.columns) - begin,
                     .stride = p.pitch,
                     .count = last - first,
                     .row = first,
                     .column = part.column};
  window.pitch = window.stride - window.run <= kSmallGap ? window.stride : window.run;
  return window;
}

// Decodes elements of a window; `row` and `column` refer to the stored matrix.
void unpack_part(const Packing& p, const InputWindow& window, std::uint64_t row,
                 std::uint64_t column, std::size_t count, float* out) {
  if (p.codes == Codes::kByColumn) std::swap(row, column);  // as in the window
  const std::byte* const in =
      window.at(stored_rows(p, row, row + 1).first) + lead(p, column) - lead(p, window.column);
  unpack(p, in, window.pitch, row, count, out);
}

}  // namespace

void PartDecoder::aim(const MatrixPart& part, std::span<const std::int32_t> index) {
  part_ = part;
  index_ = index;
  row_of_grid_.reset();
  windows_ = {};
  window(Role::kWeight) = window_of(layout_.weight, part);
  if (layout_.grid_rows == 0 || part.rows == 0) return;
  grid_ = grid_of(part);
  const auto add = [&](Role role, const Packing& packing) {
    if (input(role).is_there()) window(role) = window_of(packing, grid_);
  };
  add(Role::kScale, layout_.scale);
  add(Role::kZero, layout_.zero);
  add(Role::kBias, layout_.bias);
  const auto add_run = [&](Role role, std::uint64_t begin, std::uint64_t bytes) {
    if (input(role).is_there()) window(role) = {begin, bytes, bytes, 1, bytes};
  };
  const std::uint64_t factors = type_info(layout_.factor_type).block_bytes *
                                std::uint64_t{layout_.factor_is_of_half ? 2U : 1U};
  add_run(Role::kFactor, layout_.factor_is_of_matrix ? part.matrix * factors : 0, factors);
  const std::uint64_t row_factor = type_info(layout_.row_factor_type).block_bytes;
  add_run(Role::kRowFactor, (part.matrix * layout_.rows + part.row) * row_factor,
          part.rows * row_factor);
  if (input(Role::kColumnScale).is_there()) {
    window(Role::kColumnScale) = window_of(
        layout_.column_scale, {.rows = 1, .column = part.column, .columns = part.columns});
  }
  if (input(Role::kNestedScale).is_there()) {
    // Only flat weights have nested scales, so the grid has one row.
    const std::uint64_t first = grid_.column / layout_.nested_block;
    const std::uint64_t last = (grid_.column + grid_.columns - 1) / layout_.nested_block;
    add_run(Role::kNestedScale, first * sizeof(float), (last - first + 1) * sizeof(float));
  }
  add_run(Role::kLevels, 0, kLevels * sizeof(float));
  add_run(Role::kMap, 0, kCodesOfMap * sizeof(float));
}

void PartDecoder::missing(std::vector<Extent>& missing) const {
  for (std::size_t i = 0; i < kRoles; ++i) {
    InputWindow window = windows_[i];
    if (window.run == 0 || window.count == 0) continue;
    if (window.stride <= Source::kFetchUnit) {  // the runs touch every block between them
      window.run += (window.count - 1) * window.stride;
      window.count = 1;
    }
    for (std::uint64_t k = 0; k < window.count; ++k) {
      inputs_[i].missing(window.begin + k * window.stride, window.run, missing);
    }
  }
}

std::uint64_t PartDecoder::bytes() const {
  std::uint64_t bytes = 0;
  for (const InputWindow& window : windows_) bytes += window.bytes();
  return bytes;
}

int PartDecoder::read() {
  const std::uint64_t bytes = this->bytes();
  if (bytes > capacity_) {
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    capacity_ = bytes;
  }
  std::byte* at = bytes_.get();
  for (std::size_t i = 0; i < kRoles; ++i) {
    InputWindow& window = windows_[i];
    window.data = at;
    if (window.bytes() == 0) continue;
    const bool is_one = window.pitch == window.stride;
    const std::uint64_t reads = is_one ? 1 : window.count;
    const std::uint64_t length = is_one ? window.bytes() : window.run;
    for (std::uint64_t k = 0; k < reads; ++k, at += length) {
      const int error =
          inputs_[i].read(window.begin + k * window.stride, {at, static_cast<std::size_t>(length)});
      if (error != 0) return error;
    }
  }
  load_constants();
  return 0;
}

int PartDecoder::decode(std::uint64_t row, std::uint64_t column, std::size_t count, float* out) {
  unpack_part(layout_.weight, window(Role::kWeight), row, column, count, out);
  if (input(Role::kMap).is_there()) {
    for (std::size_t i = 0; i < count; ++i) out[i] = map_[static_cast<std::size_t>(out[i])];
  }
  if (layout_.grid_rows == 0) return 0;
  std::uint64_t grid_row = row / layout_.block_rows;
  if (layout_.index_is_of_rows && !index_.empty()) {
    const std::int32_t block = index_[static_cast<std::size_t>(row)];
    if (block < 0 || static_cast<std::uint64_t>(block) >= layout_.grid_rows) return EIO;
    grid_row = static_cast<std::uint64_t>(block);
  }
  load_grid(grid_row);
  if (input(Role::kRowFactor).is_there()) {
    const TypeInfo& type = type_info(layout_.row_factor_type);
    type.to_f32(window(Role::kRowFactor).data + (row - part_.row) * type.block_bytes, 1,
                &row_factor_);
  }
  if (const int error = apply_grid(column, count, out)) return error;
  if (input(Role::kColumnScale).is_there()) {
    const float* const scales = column_scales_.data() + (column - part_.column);
    for (std::size_t i = 0; i < count; ++i) out[i] *= scales[i];
  }
  return 0;
}

int PartDecoder::apply_grid(std::uint64_t column, std::size_t count, float* out) const {
  if (!index_.empty() && !layout_.index_is_of_rows) return apply_index(column, count, out);
  for (std::size_t i = scale_whole_blocks(column, count, out); i < count;) {
    const std::uint64_t block = (column + i) / layout_.block_columns;
    const Terms terms = terms_at(static_cast<std::size_t>(block - grid_.column));
    if (layout_.block_columns == 1) {
      apply_each(terms, count, out);
      break;
    }
    const std::uint64_t end = (block + 1) * layout_.block_columns - column;
    const std::size_t some = static_cast<std::size_t>(std::min<std::uint64_t>(end, count)) - i;
    apply(terms, some, out + i);
    i += some;
  }
  return 0;
}

MatrixPart PartDecoder::grid_of(const MatrixPart& part) const {
  MatrixPart grid{.matrix = part.matrix,
                  .row = part.row / layout_.block_rows,
                  .column = part.column / layout_.block_columns};
  std::uint64_t end_row = (part.row + part.rows - 1) / layout_.block_rows + 1;
  std::uint64_t end = (part.column + part.columns - 1) / layout_.block_columns + 1;
  if (!index_.empty() || (input(Role::kIndex).is_there() && !knows_index_)) {
    if (layout_.index_is_of_rows) {
      grid.row = 0;
      end_row = layout_.grid_rows;
    } else {
      grid.column = 0;
      end = layout_.grid_columns;
    }
  }
  if (!index_.empty() && layout_.index_is_of_rows) {
    const auto used =
        index_.subspan(static_cast<std::size_t>(part.row), static_cast<std::size_t>(part.rows));
    const auto [least, most] = std::ranges::minmax(used);
    // A row with a block outside of the grid fails when it is decoded.
    const auto last = static_cast<std::int64_t>(layout_.grid_rows - 1);
    grid.row = static_cast<std::uint64_t>(std::clamp<std::int64_t>(least, 0, last));
    end_row = static_cast<std::uint64_t>(std::clamp<std::int64_t>(most, 0, last)) + 1;
  }
  grid.column -= grid.column % kAlignedGrid;
  const std::uint64_t rounded = (end + kAlignedGrid - 1) / kAlignedGrid * kAlignedGrid;
  grid.rows = end_row - grid.row;
  grid.columns = std::min(rounded, layout_.grid_columns) - grid.column;
  return grid;
}

void PartDecoder::load_constants() {
  const auto load = [&](Role role, std::size_t count, auto& to) {
    if (input(role).is_there()) std::memcpy(to.data(), window(role).data, count * sizeof(float));
  };
  load(Role::kLevels, kLevels, levels_);
  load(Role::kMap, kCodesOfMap, map_);
  if (input(Role::kFactor).is_there()) {
    type_info(layout_.factor_type)
        .to_f32(window(Role::kFactor).data, layout_.factor_is_of_half ? 2 : 1, factors_.data());
  }
  if (input(Role::kColumnScale).is_there()) {
    column_scales_.resize(static_cast<std::size_t>(part_.columns));
    unpack_part(layout_.column_scale, window(Role::kColumnScale), 0, part_.column,
                column_scales_.size(), column_scales_.data());
  }
}

void PartDecoder::load_grid(std::uint64_t row) {
  if (row_of_grid_ == row) return;
  row_of_grid_ = row;
  const auto count = static_cast<std::size_t>(grid_.columns);
  const auto load = [&](Role role, const Packing& packing, std::vector<float>& to) {
    if (!input(role).is_there()) return;
    to.resize(count + kAlignedGrid);
    unpack_part(packing, window(role), row, grid_.column, count, to.data());
  };
  load(Role::kScale, layout_.scale, scales_);
  load(Role::kZero, layout_.zero, zeros_);
  load(Role::kBias, layout_.bias, biases_);
  if (input(Role::kNestedScale).is_there()) {
    const std::uint64_t first = grid_.column / layout_.nested_block;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t at = (grid_.column + i) / layout_.nested_block - first;
      float nested = 0;
      std::memcpy(&nested, window(Role::kNestedScale).data + at * sizeof nested, sizeof nested);
      const float product = levels_[static_cast<std::size_t>(scales_[i])] * nested;
      scales_[i] = product + layout_.nested_offset;
    }
  }
  if (!input(Role::kFactor).is_there()) return;
  // With one factor per half, each row has its own row of the grid.
  const float factor = factors_[layout_.factor_is_of_half && row >= layout_.rows / 2 ? 1 : 0];
  for (std::size_t i = 0; i < count; ++i) {
    scales_[i] = layout_.factor == QuantizedLayout::Factor::kMultiplies ? scales_[i] * factor
                                                                        : scales_[i] / factor;
  }
}

Terms PartDecoder::terms_at(std::size_t block) const {
  constexpr float kPer127 = 0.007874015718698502F;
  return {.zero = input(Role::kZero).is_there() ? zeros_.data() + block : nullptr,
          .scale = scales_.data() + block,
          .factor = layout_.is_divided_by_127 ? kPer127 : row_factor_,
          .bias = input(Role::kBias).is_there() ? biases_.data() + block : nullptr,
          .is_divided = layout_.is_divided_by_scale};
}

std::size_t PartDecoder::scale_whole_blocks(std::uint64_t column, std::size_t count,
                                            float* out) const {
  const std::uint64_t size = layout_.block_columns;
  const bool has_more = input(Role::kZero).is_there() || input(Role::kBias).is_there() ||
                        input(Role::kRowFactor).is_there() || layout_.is_divided_by_127 ||
                        layout_.is_divided_by_scale;
  if (has_more || (size != 16 && size != 32) || column % size != 0) return 0;
  const auto blocks = count / static_cast<std::size_t>(size);
  scale_blocks(scales_.data() + (column / size - grid_.column), static_cast<std::size_t>(size),
               blocks, out);
  return blocks * static_cast<std::size_t>(size);
}

int PartDecoder::apply_index(std::uint64_t column, std::size_t count, float* out) const {
  constexpr std::size_t kSome = 256;
  std::array<float, kSome> zeros;
  std::array<float, kSome> scales;
  std::array<float, kSome> biases;
  const Terms all = terms_at(0);
  const Terms own{.zero = all.zero == nullptr ? nullptr : zeros.data(),
                  .scale = scales.data(),
                  .factor = all.factor,
                  .bias = all.bias == nullptr ? nullptr : biases.data(),
                  .is_divided = all.is_divided};
  for (std::size_t done = 0; done < count; done += kSome) {
    const std::size_t some = std::min(kSome, count - done);
    for (std::size_t i = 0; i < some; ++i) {
      const std::int32_t block = index_[static_cast<std::size_t>(column) + done + i];
      if (block < 0 || static_cast<std::uint64_t>(block) >= layout_.grid_columns) return EIO;
      if (all.zero != nullptr) zeros[i] = all.zero[block];
      scales[i] = all.scale[block];
      if (all.bias != nullptr) biases[i] = all.bias[block];
    }
    apply_each(own, some, out + done);
  }
  return 0;
}

}  // namespace stfs
