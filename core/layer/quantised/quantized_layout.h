// The parameters of a quantisation scheme.
//
// A stored matrix consists of codes and of a grid of scales, zeros and biases. All elements in a
// block of the matrix share one element of the grid. The value of the element at (row, column) is
//
//   (((code - zero) * scale [* factor]) + bias) * scale of the column
//
// or the same with (code - zero) / scale. Each operation is rounded to binary32, and the value is
// then rounded once, to the type of the result. Every scheme is a set of parameters of this formula
// (QuantizedLayout):
//
//            columns                        grid columns
//        ┌──────────────┐                   ┌──────────┐
//   rows │ codes        │  block ──────►    │ scales   │ grid rows     (zeros, biases alike)
//        └──────────────┘                   └──────────┘
//
// Thread safety: values and pure functions.
#pragma once

#include "core/format/types.h"
#include "core/layer/quantised/packing.h"
#include "core/recipe/content.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stfs {

// The role of each input of a quantised weight. QuantizedInputs are in this order.
enum class Role : std::uint8_t {
  kWeight,
  kScale,
  kShape,  // only read when the checkpoint is loaded; provides no bytes for values
  kZero,
  kIndex,  // I32: the block of each row or column
  kBias,
  kFactor,
  kNestedScale,  // scale = levels[field] * nested[block / nested_block] + nested_offset
  kLevels,       // 256 F32 values
  kMap,          // 16 F32 values: the values of the weight's 4-bit fields
  kState,        // only read when the checkpoint is loaded, like kShape
  kRowFactor,    // one per row of each matrix; multiplies (code - zero) * scale
  kColumnScale,  // one per column of the stored matrix; all matrices share them
};
inline constexpr std::size_t kRoles = 13;

// The bytes of an input, which are the content of a stored or computed tensor. Thread safety: the
// same as for Content.
class QuantizedInput {
 public:
  QuantizedInput() = default;  // absent
  explicit QuantizedInput(Content content)
      : is_there_(true), content_(std::move(content)), stored_(content_.extent()) {}

  bool is_there() const { return is_there_; }
  std::uint64_t length() const { return content_.size(); }  // bytes
  // Returns true if all bytes are on this machine, so that missing() need not be called.
  bool is_complete() const { return stored_ ? stored_->source->is_complete() : length() == 0; }
  // Appends the extents of a range that are not on this machine.
  void missing(std::uint64_t offset, std::uint64_t bytes, std::vector<Extent>& missing) const;
  // Reads a range. Returns 0 or an errno. The bytes are valid only if verify() returns 0
  // afterwards.
  int read(std::uint64_t offset, std::span<std::byte> out) const {
    return stored_ ? stored_->source->read_unverified(out, stored_->offset + offset)
                   : content_.copy_unverified(offset, out);
  }
  int verify() const { return content_.verify(); }
  // Returns the source if the input is a single extent, else nullptr.
  const Source* source() const { return stored_ ? stored_->source : nullptr; }

 private:
  bool is_there_ = false;
  Content content_;
  std::optional<Extent> stored_;
};
using QuantizedInputs = std::array<QuantizedInput, kRoles>;

struct QuantizedLayout {
  std::uint64_t matrices = 1, rows = 0, columns = 0;  // the stored matrices
  bool is_transposed = false;  // the matrices of the result are [columns, rows]
  Packing weight;
  // The size of a block of the stored matrix; the last may be cut.
  std::uint64_t block_rows = 1, block_columns = 1;
  std::uint64_t grid_rows = 0, grid_columns = 0;  // 0: no grid
  Packing scale, zero, bias;                      // packings on the grid, if there is such an input
  bool index_is_of_rows = false;     // kIndex has a block for each row, not for each column
  bool index_may_be_unused = false;  // if an element of kIndex is -1, the index is ignored

  // How the factor changes the scales.
  enum class Factor : std::uint8_t { kMultiplies, kDivides };
  Factor factor = Factor::kMultiplies;
  DType factor_type = DType::kF32;
  bool factor_is_of_matrix = false;  // one factor per matrix, not one for all
  bool factor_is_of_half = false;    // two factors, for the first and the last half of the rows

  std::uint64_t nested_block = 0;  // blocks per nested scale; 0: no nested scales
  float nested_offset = 0;
  bool is_divided_by_127 = false;       // the product is multiplied by 0.007874015718698502F
  bool is_divided_by_scale = false;     // the code is divided by the scale, not multiplied
  DType row_factor_type = DType::kF32;  // F32, BF16 or F16
  Packing column_scale;                 // a packing of one row; Packing::matrix is 0

  bool operator==(const QuantizedLayout&) const = default;
};

// Checks whether inputs of these lengths in bytes (nullopt: absent) have exactly the sizes that the
// layout needs, and whether any size overflows. Returns the first role that does not fit, or
// nullopt. A producer may be made only if the result is nullopt.
using InputLengths = std::array<std::optional<std::uint64_t>, kRoles>;
std::optional<Role> misfit(const QuantizedLayout& layout, const InputLengths& inputs);

}  // namespace stfs
