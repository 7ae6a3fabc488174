// The values of a weight with the updates of LoRA adapters, computed when they are read:
//
//   W' = round(W + s1·(B1·A1) + s2·(B2·A2) + ...)      in binary32, one update after the other
//
// Thread safety: const members and the function may be called from any thread. Lifetime: the
// sources must outlive the producers.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace stfs {

// A matrix of an adapter: row-major, with elements of a floating type of whole bytes.
struct LoraMatrix {
  Extent bytes;
  DType dtype;
};

// An update of a weight W with `rows` rows and `columns` columns. If it is not transposed, A is
// [rank, columns] and B is [rows, rank]. If it is transposed, W stores the transpose of B·A, so A
// is [rank, rows] and B is [columns, rank].
//
// For a stack of matrices, A holds the rows of the first matrix, then the rows of the second, and
// so on. A row of B holds, for each index of the rank in turn, the elements of all matrices.
struct LoraUpdate {
  LoraMatrix a, b;
  std::uint64_t rank;
  float scale;
  bool is_transposed;
};

// The shape of a weight as a matrix, or as a stack of matrices with one matrix per expert. All
// dimensions of a convolution after the first count as columns.
struct MergedShape {
  DType dtype;                  // BF16, F16 or F32
  std::uint64_t rows, columns;  // the size of each matrix
  std::uint64_t matrices = 1;
};

// Returns a producer of the merged weight. `base` holds the bytes of W, row-major. A read needs
// memory for the parts of the factors that belong to its rows, in binary32.
std::unique_ptr<const Producer> merged(Content base, const MergedShape& shape,
                                       std::vector<LoraUpdate> updates);

}  // namespace stfs
