#include "core/layer/lora/product.h"

#include "core/base/vectors.h"

#include <cstring>
#include <vector>

// Highway compiles this file once per instruction set and chooses one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/layer/lora/product.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stfs::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

// Computes four rows and two vectors of columns. The sums stay in registers, and each element of
// `right`, which has two vectors per row, is loaded once for the four rows.
void add_to_four(const LoraFactors& of, const float* HWY_RESTRICT left,
                 const float* HWY_RESTRICT right, std::size_t columns, float* HWY_RESTRICT values) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  auto a0 = hn::Zero(floats), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
  for (std::size_t k = 0; k < of.rank; ++k, right += 2 * lanes) {
    const auto r0 = hn::LoadU(floats, right);
    const auto r1 = hn::LoadU(floats, right + lanes);
    const auto a = hn::Set(floats, left[k]);
    a0 = hn::Add(a0, hn::Mul(a, r0));
    a1 = hn::Add(a1, hn::Mul(a, r1));
    const auto b = hn::Set(floats, left[of.rank + k]);
    b0 = hn::Add(b0, hn::Mul(b, r0));
    b1 = hn::Add(b1, hn::Mul(b, r1));
    const auto c = hn::Set(floats, left[2 * of.rank + k]);
    c0 = hn::Add(c0, hn::Mul(c, r0));
    c1 = hn::Add(c1, hn::Mul(c, r1));
    const auto d = hn::Set(floats, left[3 * of.rank + k]);
    d0 = hn::Add(d0, hn::Mul(d, r0));
    d1 = hn::Add(d1, hn::Mul(d, r1));
  }
  const auto scale = hn::Set(floats, of.scale);
  const auto add = [&](auto sum, float* to) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(floats, to), hn::Mul(scale, sum)), floats, to);
  };
  add(a0, values);
  add(a1, values + lanes);
  add(b0, values + columns);
  add(b1, values + columns + lanes);
  add(c0, values + 2 * columns);
  add(c1, values + 2 * columns + lanes);
  add(d0, values + 3 * columns);
  add(d1, values + 3 * columns + lanes);
}

// Computes one row and one vector of columns, for the rows that remain.
void add_to_one(const LoraFactors& of, const float* HWY_RESTRICT left,
                const float* HWY_RESTRICT right, float* HWY_RESTRICT values) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  auto sum = hn::Zero(floats);
  for (std::size_t k = 0; k < of.rank; ++k, right += 2 * lanes) {
    sum = hn::Add(sum, hn::Mul(hn::Set(floats, left[k]), hn::LoadU(floats, right)));
  }
  hn::StoreU(hn::Add(hn::LoadU(floats, values), hn::Mul(hn::Set(floats, of.scale), sum)), floats,
             values);
}

void add_to(const LoraFactors& of, std::size_t rows, std::size_t columns, float* values) {
  const std::size_t lanes = hn::Lanes(Floats());
  const std::size_t fours = rows - rows % 4;
  std::size_t j = 0;
  // Copy two vectors of each row of `right` into consecutive memory. The copy stays in the
  // first-level cache for all rows. In place, the rows may be a power of two apart, and would then
  // share only a few cache sets.
  std::vector<float> panel(of.rank * 2 * lanes);
  for (; j + 2 * lanes <= columns; j += 2 * lanes) {
    for (std::size_t k = 0; k < of.rank; ++k) {
      std::memcpy(panel.data() + k * 2 * lanes, of.right + k * columns + j,
                  2 * lanes * sizeof(float));
    }
    for (std::size_t i = 0; i < fours; i += 4) {
      add_to_four(of, of.left + i * of.rank, panel.data(), columns, values + i * columns + j);
    }
    for (std::size_t i = fours; i < rows; ++i) {
      for (const std::size_t at : {std::size_t{0}, lanes}) {
        add_to_one(of, of.left + i * of.rank, panel.data() + at, values + i * columns + j + at);
      }
    }
  }
  for (; j < columns; ++j) {
    for (std::size_t i = 0; i < rows; ++i) {
      float sum = 0;
      for (std::size_t k = 0; k < of.rank; ++k) {
        sum += of.left[i * of.rank + k] * of.right[k * columns + j];
      }
      values[i * columns + j] += of.scale * sum;
    }
  }
}

}  // namespace
}  // namespace stfs::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stfs {
namespace {

HWY_EXPORT(add_to);

}  // namespace

void add_product(const LoraFactors& factors, std::size_t rows, std::size_t columns, float* values) {
  HWY_DYNAMIC_DISPATCH(add_to)(factors, rows, columns, values);
}

}  // namespace stfs

#endif
