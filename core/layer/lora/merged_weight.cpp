#include "core/layer/lora/merged_weight.h"

#include "core/format/ieee.h"
#include "core/layer/lora/product.h"
#include "core/recipe/elements.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace stfs {
namespace {

// The maximum number of elements that are merged at a time.
constexpr std::uint64_t kStep = 256 << 10;
// The maximum number of elements of a factor in memory.
constexpr std::uint64_t kMaxOfFactor = 4 << 20;

// A range of rows and of columns within a matrix.
struct Rectangle {
  std::uint64_t matrix, row, rows, column, columns;
};

struct Work {
  std::vector<std::byte> bytes;
  std::vector<float> values, left, other;
  struct Right {
    // The range that `values` holds; empty at first.
    std::uint64_t matrix = 0, column = 0, columns = 0;
    std::vector<float> values;
  };
  std::vector<Right> rights;  // one per update; all rows of a read share them
};

class Merged : public Producer {
 public:
  Merged(Content base, const MergedShape& shape, std::vector<LoraUpdate> updates)
      : base_(std::move(base)),
        shape_(shape),
        updates_(std::move(updates)),
        type_(type_info(shape.dtype)) {}

  std::uint64_t size() const override { return base_.size(); }

  int verify() const override {
    if (const int error = base_.verify()) return error;
    const Source* verified = nullptr;
    for (const LoraUpdate& update : updates_) {
      for (const Extent& bytes : {update.a.bytes, update.b.bytes}) {
        if (bytes.source == verified) continue;
        if (const int error = bytes.source->verify()) return error;
        verified = bytes.source;
      }
    }
    return 0;
  }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const std::uint64_t begin = offset - offset % type_.block_bytes;
    const std::uint64_t end =
        (offset + length + type_.block_bytes - 1) / type_.block_bytes * type_.block_bytes;
    for (const Extent& extent : base_.missing(begin, end - begin)) missing.push_back(extent);
    if (begin == end) return;
    const std::uint64_t row_bytes = shape_.columns * type_.block_bytes;
    const std::uint64_t first = begin / row_bytes, last = (end - 1) / row_bytes;
    for (const LoraUpdate& update : updates_) {
      for (const Extent& bytes : {update.a.bytes, rows_of_b(update, first, last)}) {
        if (!bytes.source->has({bytes.offset, bytes.length})) missing.push_back(bytes);
      }
    }
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const IeeeArithmetic ieee;
    return fill(offset, out);
  }

  // Not inline, because the compiler could move the arithmetic out of the lifetime of
  // IeeeArithmetic.
  [[gnu::noinline]] int fill(std::uint64_t offset, std::span<std::byte> out) const {
    Work work;
    work.rights.resize(updates_.size());
    return fill_elements(offset, out, type_.block_bytes,
                         [&](std::uint64_t first, std::uint64_t& count, std::byte* to) {
                           return some(work, first, count, to);
                         });
  }

 private:
  // Returns the part of B that rows [first, last] of the weight need.
  Extent rows_of_b(const LoraUpdate& update, std::uint64_t first, std::uint64_t last) const {
    if (update.is_transposed || shape_.matrices != 1) return update.b.bytes;
    const std::uint64_t row = update.rank * type_info(update.b.dtype).block_bytes;
    return update.b.bytes.part(first * row, (last - first + 1) * row);
  }

  // Returns the elements to merge next, from element `first` on and at most `most`: whole rows, or
  // a part of one row.
  Rectangle rectangle_at(std::uint64_t first, std::uint64_t most) const {
    const std::uint64_t columns = shape_.columns;
    const std::uint64_t row = first / columns;
    Rectangle part{.matrix = row / shape_.rows,
                   .row = row % shape_.rows,
                   .rows = 1,
                   .column = first % columns,
                   .columns = 0};
    const bool is_narrow = std::ranges::all_of(updates_, [&](const LoraUpdate& update) {
      return columns <= kMaxOfFactor / std::min(kMaxOfFactor, update.rank);
    });
    if (part.column == 0 && most >= columns && columns <= kStep && is_narrow) {
      part.rows = std::min(std::min(most, kStep) / columns, shape_.rows - part.row);
      part.columns = columns;
    } else {
      part.columns = std::min({most, columns - part.column, kStep});
    }
    return part;
  }

  // Writes the first elements of `count` elements, and sets `count` to the number written.
  int some(Work& work, std::uint64_t first, std::uint64_t& count, std::byte* out) const {
    const Rectangle part = rectangle_at(first, count);
    count = part.rows * part.columns;
    const auto elements = static_cast<std::size_t>(count);
    work.values.resize(elements);
    work.bytes.resize(elements * type_.block_bytes);
    if (const int error = base_.copy_unverified(first * type_.block_bytes, work.bytes))
      return error;
    type_.to_f32(work.bytes.data(), elements, work.values.data());
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      if (const int error = add(work, updates_[i], work.rights[i], part)) return error;
    }
    type_.from_f32(work.values.data(), elements, out);
    return 0;
  }

  int add(Work& work, const LoraUpdate& update, Work::Right& right, const Rectangle& part) const {
    if (right.matrix != part.matrix || right.column != part.column ||
        right.columns != part.columns) {
      const int error = update.is_transposed ? load_b(work, update, part.matrix, part.column,
                                                      part.columns, work.other)
                                             : load_a(work, update, part.matrix, shape_.columns,
                                                      part.column, part.columns, right.values);
      if (error != 0) return error;
      if (update.is_transposed) transpose(work.other, part.columns, update.rank, right.values);
      right.matrix = part.matrix;
      right.column = part.column;
      right.columns = part.columns;
    }
    if (const int error = load_left(work, update, part)) return error;
    add_product({.left = work.left.data(),
                 .right = right.values.data(),
                 .rank = static_cast<std::size_t>(update.rank),
                 .scale = update.scale},
                static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.columns),
                work.values.data());
    return 0;
  }

  int load_left(Work& work, const LoraUpdate& update, const Rectangle& part) const {
    if (!update.is_transposed) {
      return load_b(work, update, part.matrix, part.row, part.rows, work.left);
    }
    if (const int error =
            load_a(work, update, part.matrix, shape_.rows, part.row, part.rows, work.other)) {
      return error;
    }
    transpose(work.other, update.rank, part.rows, work.left);
    return 0;
  }

  // Loads the columns [column, column + columns) of a matrix's A, which is [rank, width]. `out` is
  // row-major.
  static int load_a(Work& work, const LoraUpdate& update, std::uint64_t matrix, std::uint64_t width,
                    std::uint64_t column, std::uint64_t columns, std::vector<float>& out) {
    const std::uint64_t rank = update.rank;
    const std::uint64_t begin = matrix * rank * width;
    if (columns == width) return load(work, update.a, begin, rank * width, out);
    std::vector<float> row;
    out.resize(static_cast<std::size_t>(rank * columns));
    for (std::uint64_t k = 0; k < rank; ++k) {
      if (const int error = load(work, update.a, begin + k * width + column, columns, row)) {
        return error;
      }
      std::ranges::copy(row, out.begin() + static_cast<std::ptrdiff_t>(k * columns));
    }
    return 0;
  }

  // Loads the rows [row, row + rows) of a matrix's B, which is [rows, rank].
  int load_b(Work& work, const LoraUpdate& update, std::uint64_t matrix, std::uint64_t row,
             std::uint64_t rows, std::vector<float>& out) const {
    const std::uint64_t rank = update.rank, matrices = shape_.matrices;
    if (matrices == 1) return load(work, update.b, row * rank, rows * rank, out);
    std::vector<float> of_all;
    out.resize(static_cast<std::size_t>(rows * rank));
    for (std::uint64_t i = 0; i < rows; ++i) {
      const std::uint64_t width = rank * matrices;
      if (const int error = load(work, update.b, (row + i) * width, width, of_all)) return error;
      for (std::uint64_t k = 0; k < rank; ++k) {
        out[i * rank + k] = of_all[k * matrices + matrix];
      }
    }
    return 0;
  }

  // Loads consecutive elements of a matrix.
  static int load(Work& work, const LoraMatrix& matrix, std::uint64_t first, std::uint64_t count,
                  std::vector<float>& out) {
    const TypeInfo& type = type_info(matrix.dtype);
    out.resize(static_cast<std::size_t>(count));
    work.bytes.resize(static_cast<std::size_t>(count) * type.block_bytes);
    const std::uint64_t offset = matrix.bytes.offset + first * type.block_bytes;
    if (const int error = matrix.bytes.source->read_unverified(work.bytes, offset)) return error;
    type.to_f32(work.bytes.data(), out.size(), out.data());
    return 0;
  }

  static void transpose(const std::vector<float>& in, std::uint64_t rows, std::uint64_t columns,
                        std::vector<float>& out) {
    out.resize(in.size());
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) out[j * rows + i] = in[i * columns + j];
    }
  }

  Content base_;
  MergedShape shape_;
  std::vector<LoraUpdate> updates_;
  const TypeInfo& type_;
};

}  // namespace

std::unique_ptr<const Producer> merged(Content base, const MergedShape& shape,
                                       std::vector<LoraUpdate> updates) {
  return std::make_unique<Merged>(std::move(base), shape, std::move(updates));
}

}  // namespace stfs
