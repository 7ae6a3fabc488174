// A tensor as a picture: PNG with a palette of 256 colours, and without compression, so that the
// size is known before the values are.
//
//   signature | IHDR | PLTE | IDAT of row 0 | IDAT of row 1 | ... | IEND
//
// Each row is one IDAT: a filter byte and a byte a pixel, in stored blocks of deflate. The first
// IDAT begins with the header of zlib; the last one ends with the Adler-32 of all rows.
//
// The last dimension goes across, all others go down. One dimension is wrapped: into rows of the
// least power of two whose square holds it. A picture has at most 2048 x 2048 pixels: each stands
// for a block of elements, all but the last ones of equal size, and shows the element of the
// largest magnitude there (NaN above infinity, infinity above every number; of x and -x the
// positive one), so that an outlier never disappears.
//
// Zero is white, positive values are red, negative ones blue; the colours end at three standard
// deviations. Black is NaN, green is infinity of either sign, and grey is where the last row has no
// elements. These three differ from all others also to people who see two colours alone
// (tests/mount/pictures.py).
//
// Thread safety: the functions may be called from any thread. Pixels: see() as ValueSink says, then
// const members from any thread.
#pragma once

#include "core/values/stats.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stfs {

inline constexpr std::uint64_t kMostPixels = 2048;  // across, and down

struct PictureShape {
  std::uint64_t elements;
  std::uint64_t columns, rows;              // of elements
  std::uint64_t block_columns, block_rows;  // of elements, for a pixel

  std::size_t width() const;  // pixels
  std::size_t height() const;
  std::uint64_t png_bytes() const;
};

// The size of the picture of an array with at least one element: at most `most` pixels each way.
PictureShape picture_shape(std::span<const std::uint64_t> shape, std::uint64_t most = kMostPixels);

// Collects the pixels of a picture from the values of a pass, in their order in the array.
class Pixels : public ValueSink {
 public:
  explicit Pixels(const PictureShape& shape);

  using ValueSink::see;
  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;

  // The picture in the scale of `stats`: those of the whole tensor.
  std::string png(const ValueStats& stats) const;
  // The pixels without a file around them, row by row: a byte of picture_color() each, or the byte
  // of no element.
  // White is `middle`; the colours end `limit` away from it.
  std::vector<std::uint8_t> colors(double middle, double limit) const;

 private:
  PictureShape shape_;
  std::vector<std::uint32_t> keys_;  // by pixel: orders as the rule above
};

// The byte of a pixel with this value; `limit` is three standard deviations.
std::uint8_t picture_color(float value, double limit);
std::uint8_t picture_color_of_none();  // of no element

}  // namespace stfs
