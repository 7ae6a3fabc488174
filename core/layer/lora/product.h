// The update of a LoRA adapter, added to a part of a matrix in binary32.
//
// Thread safety: a pure function. Call it while IeeeArithmetic lives.
#pragma once

#include <cstddef>

namespace stfs {

// A part of the factors of an update: `left` is [rows, rank], `right` is [rank, columns], both
// row-major.
struct LoraFactors {
  const float* left;
  const float* right;
  std::size_t rank;
  float scale;
};

// values[i,j] += scale * (left[i,0] * right[0,j] + left[i,1] * right[1,j] + ...) for a row-major
// matrix. The sum begins with 0, grows in the order of the rank, and each operation rounds, so the
// bits are the same with all sets of instructions.
void add_product(const LoraFactors& factors, std::size_t rows, std::size_t columns, float* values);

}  // namespace stfs
