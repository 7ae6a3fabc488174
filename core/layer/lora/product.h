// Adds the update of a LoRA adapter to a part of a matrix, in binary32.
//
// Thread safety: a pure function. Call it while an IeeeArithmetic exists.
#pragma once

#include <cstddef>

namespace stfs {

// The parts of an update's factors: `left` is [rows, rank] and `right` is [rank, columns], both
// row-major.
struct LoraFactors {
  const float* left;
  const float* right;
  std::size_t rank;
  float scale;
};

// Computes values[i,j] += scale * (left[i,0] * right[0,j] + left[i,1] * right[1,j] + ...) for a
// row-major matrix. The sum starts at 0 and adds the products in the order of the rank. Each
// operation rounds, so the resulting bits are the same with every instruction set.
void add_product(const LoraFactors& factors, std::size_t rows, std::size_t columns, float* values);

}  // namespace stfs
