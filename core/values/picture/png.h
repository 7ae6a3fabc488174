// A tensor as a picture: a PNG with a palette of 256 colours, not compressed, so that its size is
// known before the values are.
//
//   signature | IHDR | PLTE | IDAT of row 0 | IDAT of row 1 | ... | IEND
//
// Each row is one IDAT: a filter byte and one byte per pixel, in stored blocks of deflate. The
// first IDAT begins with the header of zlib, and the last one ends with the Adler-32 of all rows.
//
// The last dimension is horizontal, all others are vertical. A one-dimensional tensor is wrapped
// into rows: the length of a row is the smallest power of two with a square that is at least the
// number of elements. A picture has at most 2048 x 2048 pixels. Each pixel represents a block of
// elements; all blocks have the same size except the last ones. A pixel shows the element of the
// block that has the largest magnitude (NaN counts as larger than infinity, infinity as larger than
// every number, and a positive value as larger than its negative), so an outlier never disappears.
//
// Zero is white, positive values are red, negative values are blue; the colours end at three
// standard deviations. Black is NaN, green is infinity of either sign, and grey marks the end of
// the last row, which has no elements. People with colour blindness can distinguish these three
// from all other colours too (tests/mount/pictures.py).
//
// Thread safety: the functions may be called from any thread. Pixels::see() may be called as
// ValueSink says; afterwards const members may be called from any thread.
#pragma once

#include "core/values/stats.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stfs {

inline constexpr std::uint64_t kMaxPixels = 2048;  // horizontally, and vertically

struct PictureShape {
  std::uint64_t elements;
  std::uint64_t columns, rows;              // in elements
  std::uint64_t block_columns, block_rows;  // in elements, per pixel

  std::size_t width() const;  // pixels
  std::size_t height() const;
  std::uint64_t png_bytes() const;
};

// Returns the shape of the picture of an array with at least one element. It has at most `most`
// pixels in each direction.
PictureShape picture_shape(std::span<const std::uint64_t> shape, std::uint64_t most = kMaxPixels);

// Collects the pixels of a picture from the values of a pass, which may arrive in any order.
class Pixels : public ValueSink {
 public:
  explicit Pixels(const PictureShape& shape);

  using ValueSink::see;
  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;

  // Returns the picture. `stats` must be the statistics of the whole tensor; they determine the
  // colours.
  std::string png(const ValueStats& stats) const;
  // Returns only the pixels, row by row: one byte of picture_color() each, or
  // picture_color_of_none() if there is no element. `middle` is white, and the colours end at a
  // distance of `limit` from it.
  std::vector<std::uint8_t> colors(double middle, double limit) const;

 private:
  PictureShape shape_;
  std::vector<std::uint32_t> keys_;  // by pixel: key_of() of the element that it shows
};

// Returns the byte of a pixel with this value. The colours end at `limit`.
std::uint8_t picture_color(float value, double limit);
std::uint8_t picture_color_of_none();  // the byte of a pixel without an element

}  // namespace stfs
