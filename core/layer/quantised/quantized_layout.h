// The parameters of a scheme of quantisation.
//
// A stored matrix has codes, and a grid of scales, zeros and biases; a block of the matrix shares
// one element of the grid. The value of the element at (row, column) is
//
//   (((code - zero) * scale [* factor]) + bias) * scale of the column
//
// or (code - zero) / scale, with each operation rounded to binary32. It is then rounded once, to
// the type of the result. Every scheme of quantisation is a set of parameters of this
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

// The role of each stored tensor of a quantised weight, in the order of QuantizedInputs.
enum class Role : std::uint8_t {
  kWeight,
  kScale,
  kShape,  // read when the checkpoint is loaded; gives no bytes here
  kZero,
  kIndex,  // I32, the block of each row or column
  kBias,
  kFactor,
  kNestedScale,  // scale = levels[field] * nested[block / nested_block] + nested_offset
  kLevels,       // 256 F32
  kMap,          // 16 F32: a field of the weight means this value
  kState,        // as kShape
  kRowFactor,    // one for each row of each matrix; the product with the scale is multiplied by it
  kColumnScale,  // one for each column of the stored matrix; all matrices share them
};
inline constexpr std::size_t kRoles = 13;

// The bytes of an input: those of a tensor, stored or computed. Thread safety: as a Content.
class QuantizedInput {
 public:
  QuantizedInput() = default;  // absent
  explicit QuantizedInput(Content content)
      : is_there_(true), content_(std::move(content)), stored_(content_.extent()) {}

  bool is_there() const { return is_there_; }
  std::uint64_t length() const { return content_.size(); }  // bytes
  // Whether every byte is on this machine, without looking.
  bool is_complete() const { return stored_ ? stored_->source->is_complete() : length() == 0; }
  // Appends the extents of a range that are not on this machine.
  void missing(std::uint64_t offset, std::uint64_t bytes, std::vector<Extent>& missing) const;
  // 0 or an errno; the bytes are valid only if verify() returns 0 afterwards.
  int read(std::uint64_t offset, std::span<std::byte> out) const {
    return stored_ ? stored_->source->read_unverified(out, stored_->offset + offset)
                   : content_.copy_unverified(offset, out);
  }
  int verify() const { return content_.verify(); }
  const Source* source() const { return stored_ ? stored_->source : nullptr; }  // of one extent

 private:
  bool is_there_ = false;
  Content content_;
  std::optional<Extent> stored_;
};
using QuantizedInputs = std::array<QuantizedInput, kRoles>;

struct QuantizedLayout {
  std::uint64_t matrices = 1, rows = 0, columns = 0;  // as they are stored
  bool is_transposed = false;                         // the result has [columns, rows] matrices
  Packing weight;
  std::uint64_t block_rows = 1, block_columns = 1;  // of the stored matrix; the last may be cut
  std::uint64_t grid_rows = 0, grid_columns = 0;    // 0: no grid
  Packing scale, zero, bias;                        // of the grid, where there is such an input
  bool index_is_of_rows = false;                    // kIndex has a block a row, not a column
  bool index_may_be_unused = false;                 // -1 in any place: as if it were absent

  enum class Factor : std::uint8_t { kMultiplies, kDivides };  // the scales
  Factor factor = Factor::kMultiplies;
  DType factor_type = DType::kF32;
  bool factor_is_of_matrix = false;  // one a matrix, not one for all
  bool factor_is_of_half = false;    // two for each of these, of the first and the last rows

  std::uint64_t nested_block = 0;
  float nested_offset = 0;
  bool is_divided_by_127 = false;       // the product is multiplied by 0.007874015718698502F
  bool is_divided_by_scale = false;     // a value is divided by the scale, not multiplied
  DType row_factor_type = DType::kF32;  // F32, BF16 or F16
  Packing column_scale;                 // of one row; matrix is 0

  bool operator==(const QuantizedLayout&) const = default;
};

// Whether inputs of these lengths in bytes have exactly what the layout needs, and nothing
// overflows; nullopt: absent. A producer may be made only then. Returns the first role for which it
// is not so.
using InputLengths = std::array<std::optional<std::uint64_t>, kRoles>;
std::optional<Role> misfit(const QuantizedLayout& layout, const InputLengths& inputs);

}  // namespace stfs
