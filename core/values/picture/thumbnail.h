// A small picture that shows the structure of a tensor: rows, columns and blocks that differ from
// others.
//
// If a pixel represents only a few elements, it shows the element of the largest magnitude, as in
// png.h. If it represents many, that element is an outlier almost everywhere, and the picture would
// only show noise. Such a pixel shows the root mean square of its elements relative to the root
// mean square of the tensor.
//
// Thread safety: ThumbnailPixels::see() may be called as ValueSink says; afterwards const members
// may be called from any thread.
#pragma once

#include "core/values/picture/png.h"
#include "core/values/stats.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stfs {

inline constexpr std::size_t kMaxThumbnail = 48;  // in each direction

struct Thumbnail {
  std::size_t width = 0;
  std::size_t height = 0;
  std::vector<std::uint8_t> pixels;  // bytes of picture_color(), row by row from the top

  enum class Shows { kValues, kStrength };
  Shows shows = Shows::kValues;
  // For kValues: `middle` is white, and the colours end at a distance of `limit` from it. `middle`
  // is 0 unless all values have the same sign. For kStrength: the RMS of the tensor is white, and
  // the colours end at `limit` times it and at 1/`limit` of it.
  double middle = 0;
  double limit = 0;
};

class ThumbnailPixels : public ValueSink {
 public:
  // `shape` is the shape of a tensor with at least one element.
  explicit ThumbnailPixels(std::span<const std::uint64_t> shape);

  using ValueSink::see;
  void see(std::uint64_t first, std::span<const float> values, unsigned thread) override;

  Thumbnail thumbnail(const ValueStats& stats) const;

 private:
  enum Mark : std::uint8_t { kFinite, kInfinite, kNotANumber };

  Thumbnail of_values(const ValueStats& stats) const;
  Thumbnail of_strengths() const;
  std::uint64_t elements_at(std::size_t x, std::size_t y) const;

  const PictureShape shape_;
  const bool shows_strength_;
  Pixels values_;                // has a single pixel if strengths are shown
  std::vector<double> squares_;  // the sum of squares of each pixel
  std::vector<std::uint8_t> marks_;
};

}  // namespace stfs
