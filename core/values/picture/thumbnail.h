// A small picture that shows the structure of a tensor: rows, columns and blocks that are unlike
// others.
//
// Where a pixel stands for a few elements, it shows the one of the largest magnitude, as png.h
// does. Where it stands for many, that one is an outlier almost everywhere, and the picture would
// be noise: the pixel shows the root mean square of its elements against that of the tensor.
//
// Thread safety: ThumbnailPixels: see() as ValueSink says, then const members from any thread.
#pragma once

#include "core/values/picture/png.h"
#include "core/values/stats.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stfs {

inline constexpr std::size_t kMostThumbnail = 48;  // pixels each way

struct Thumbnail {
  std::size_t width = 0;
  std::size_t height = 0;
  std::vector<std::uint8_t> pixels;  // bytes of picture_color(), in rows from the top

  enum class Shows { kValues, kStrength };
  Shows shows = Shows::kValues;
  // kValues: white is `middle`, which is 0 unless all values have one sign, and the colours end
  // `limit` away from it. kStrength: white is the RMS of the tensor, and the colours end at `limit`
  // times it and at a `limit`th of it.
  double middle = 0;
  double limit = 0;
};

class ThumbnailPixels : public ValueSink {
 public:
  // Of a tensor with at least one element.
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
  Pixels values_;                // of no more than a pixel where strengths are shown
  std::vector<double> squares_;  // by pixel: sums
  std::vector<std::uint8_t> marks_;
};

}  // namespace stfs
