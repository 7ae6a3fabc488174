// Decodes a part of a quantised matrix into values.
//
// Thread safety: one thread at a time. Lifetime: layout, inputs and index must outlive a decoder.
#pragma once

#include "core/layer/quantised/quantized_layout.h"
#include "core/layer/quantised/row_loops.h"
#include "core/recipe/content.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stfs {

// The bytes of an input that a part of the stored matrix needs. They form runs of equal length at
// equal distances.
struct InputWindow {
  std::uint64_t begin = 0;   // the first byte of the first run in the input
  std::uint64_t run = 0;     // bytes per run
  std::uint64_t stride = 0;  // bytes from one run to the next in the input
  std::uint64_t count = 0;   // the number of runs
  // Bytes from one run to the next in `data`: equal to `run` or to `stride`.
  std::uint64_t pitch = 0;
  std::uint64_t row = 0;            // the stored row of the first run
  std::uint64_t column = 0;         // the first element of each run
  const std::byte* data = nullptr;  // the runs, after they were read

  const std::byte* at(std::uint64_t stored_row) const { return data + (stored_row - row) * pitch; }
  std::uint64_t bytes() const { return run == 0 || count == 0 ? 0 : (count - 1) * pitch + run; }
};

// A rectangle of one stored matrix.
struct MatrixPart {
  std::uint64_t matrix = 0;
  std::uint64_t row = 0, rows = 0;
  std::uint64_t column = 0, columns = 0;
};

// Decodes a part of a stored matrix row by row, from bytes that it has read before.
class PartDecoder {
 public:
  PartDecoder(const QuantizedLayout& layout, const QuantizedInputs& inputs)
      : layout_(layout), inputs_(inputs) {}

  // Says that aim() will be called with the index. Otherwise, if the layout has an index, aim()
  // selects all bytes that any index could need.
  void set_index_known() { knows_index_ = true; }
  // Selects the part to decode next. Its first column must be aligned, and its end too unless it is
  // the end of the row.
  void aim(const MatrixPart& part, std::span<const std::int32_t> index);
  // Appends the extents of the selected bytes that are not on this machine.
  void missing(std::vector<Extent>& missing) const;
  // Returns the number of bytes that read() will read.
  std::uint64_t bytes() const;
  // Reads the selected bytes. Returns 0 or an errno.
  int read();
  // Decodes the elements [column, column + count) of a row of the part; `column` must be aligned.
  // `out` must have room for one block more. Returns 0, or EIO for an index outside of the grid.
  int decode(std::uint64_t row, std::uint64_t column, std::size_t count, float* out);

 private:
  static constexpr std::size_t kLevels = 256;
  static constexpr std::size_t kCodesOfMap = 16;

  InputWindow& window(Role role) { return windows_[static_cast<std::size_t>(role)]; }
  const QuantizedInput& input(Role role) const { return inputs_[static_cast<std::size_t>(role)]; }

  // Returns the part of the grid that a part of the matrix uses.
  MatrixPart grid_of(const MatrixPart& part) const;
  void load_constants();
  // Fills scales_, zeros_ and biases_ with the columns of grid_ in a row of the grid.
  void load_grid(std::uint64_t row);
  // Scales whole blocks of 16 or 32 columns that only have a scale, from the first element on.
  // Returns the number of elements that it has scaled.
  std::size_t scale_whole_blocks(std::uint64_t column, std::size_t count, float* out) const;
  // Returns the terms of a block; `block` is relative to the first column of grid_.
  Terms terms_at(std::size_t block) const;
  // Applies the grid to `count` codes. Returns 0 or EIO.
  int apply_grid(std::uint64_t column, std::size_t count, float* out) const;
  int apply_index(std::uint64_t column, std::size_t count, float* out) const;

  const QuantizedLayout& layout_;
  const QuantizedInputs& inputs_;
  MatrixPart part_;
  MatrixPart grid_;
  std::span<const std::int32_t> index_;
  bool knows_index_ = false;
  std::array<InputWindow, kRoles> windows_;
  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t capacity_ = 0;
  std::optional<std::uint64_t> row_of_grid_;
  std::vector<float> scales_, zeros_, biases_;
  std::vector<float> column_scales_;  // the column scales of the part
  std::array<float, kLevels> levels_{};
  std::array<float, kCodesOfMap> map_{};
  float row_factor_ = 1;
  std::array<float, 2> factors_{};
};

}  // namespace stfs
