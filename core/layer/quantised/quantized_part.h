// The values of a part of a quantised matrix.
//
// Thread safety: none. Lifetime: layout, inputs and index outlive a decoder.
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

// The bytes of an input that a part of the stored matrix needs: runs at equal distances.
struct InputWindow {
  std::uint64_t begin = 0;  // in the input, bytes
  std::uint64_t run = 0;    // bytes
  std::uint64_t stride = 0;
  std::uint64_t count = 0;          // runs
  std::uint64_t pitch = 0;          // from run to run in `data`: run, or stride
  std::uint64_t row = 0;            // the stored row of the first run
  std::uint64_t column = 0;         // the first element of the runs
  const std::byte* data = nullptr;  // the runs, once they are read

  const std::byte* at(std::uint64_t stored_row) const { return data + (stored_row - row) * pitch; }
  std::uint64_t bytes() const { return run == 0 || count == 0 ? 0 : (count - 1) * pitch + run; }
};

// Rows and columns of one stored matrix.
struct MatrixPart {
  std::uint64_t matrix = 0;
  std::uint64_t row = 0, rows = 0;
  std::uint64_t column = 0, columns = 0;
};

// Decodes a part of a stored matrix row by row, from bytes that were read before.
class PartDecoder {
 public:
  PartDecoder(const QuantizedLayout& layout, const QuantizedInputs& inputs)
      : layout_(layout), inputs_(inputs) {}

  // Without it, the windows of a layout with an index are those that any index could need.
  void set_index_known() { knows_index_ = true; }
  // Sets the windows of a part. The part's first column is aligned, as is its end unless it is that
  // of the row.
  void aim(const MatrixPart& part, std::span<const std::int32_t> index);
  // Appends the bytes of the windows that are not on this machine.
  void missing(std::vector<Extent>& missing) const;
  // That read() will read.
  std::uint64_t bytes() const;
  int read();
  // The values of [column, column + count) of a row of the part; the column is aligned. `out` has
  // room for a whole block more. Returns 0, or EIO for an index outside of the grid.
  int decode(std::uint64_t row, std::uint64_t column, std::size_t count, float* out);

 private:
  static constexpr std::size_t kLevels = 256;
  static constexpr std::size_t kCodesOfMap = 16;

  InputWindow& window(Role role) { return windows_[static_cast<std::size_t>(role)]; }
  const QuantizedInput& input(Role role) const { return inputs_[static_cast<std::size_t>(role)]; }

  // The part of the grid that a part of the matrix uses.
  MatrixPart grid_of(const MatrixPart& part) const;
  void load_constants();
  // Fills scales_, zeros_ and biases_ with a row of the grid, the columns of grid_.
  void load_grid(std::uint64_t row);
  // Scales the blocks of 16 or 32 columns that have nothing but a scale, from the first element on.
  // Returns the number of elements that are done.
  std::size_t scale_whole_blocks(std::uint64_t column, std::size_t count, float* out) const;
  // `block` is counted from the first of grid_.
  Terms terms_at(std::size_t block) const;
  // Applies the grid to `count` codes.
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
  std::vector<float> column_scales_;  // of the part
  std::array<float, kLevels> levels_{};
  std::array<float, kCodesOfMap> map_{};
  float row_factor_ = 1;
  std::array<float, 2> factors_{};
};

}  // namespace stfs
