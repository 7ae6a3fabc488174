// The values of a weight with the updates of LoRA adapters, computed when they are read:
//
//   W' = round(W + s1·(B1·A1) + s2·(B2·A2) + ...)      in binary32, one update after the other
//
// Thread safety: const members and the function may be called from any thread. Lifetime: sources
// outlive the producers.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace stfs {

// A matrix of an adapter: row-major, of a floating type of whole bytes.
struct LoraMatrix {
  Extent bytes;
  DType dtype;
};

// An update of a weight W of `rows` and `columns`. Straight: A is [rank, columns], B [rows, rank].
// Transposed, where W stores the transpose of B·A: A is [rank, rows], B [columns, rank]. Of a stack
// of matrices A has those of one matrix behind those of another, and a row of B has, for each of
// `rank`, the elements of all matrices.
struct LoraUpdate {
  LoraMatrix a, b;
  std::uint64_t rank;
  float scale;
  bool is_transposed;
};

// A weight as a matrix: a convolution's dimensions behind the first are its columns. Or a stack of
// matrices, one for each expert.
struct MergedShape {
  DType dtype;                  // BF16, F16 or F32
  std::uint64_t rows, columns;  // of a matrix
  std::uint64_t matrices = 1;
};

// `base` is the weight's bytes, row-major. Reading needs memory for the factors of the rows that
// are read, in binary32.
std::unique_ptr<const Producer> merged(Content base, const MergedShape& shape,
                                       std::vector<LoraUpdate> updates);

}  // namespace stfs
