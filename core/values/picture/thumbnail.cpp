#include "core/values/picture/thumbnail.h"

#include "core/values/moments.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

namespace stfs {
namespace {

// If a pixel represents at least this many elements, its strength is shown.
constexpr std::uint64_t kManyElements = 16;
constexpr std::size_t kFew = 16;  // fewer values are added one by one
constexpr PictureShape kNothing{1, 1, 1, 1, 1};

double sum_of_squares(std::span<const float> values) {
  if (values.size() >= kFew) {
    const float sum = squares_of(values);
    if (std::isfinite(sum) || std::isnan(sum)) return static_cast<double>(sum);
  }
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// Adds atomically, because two threads may have elements of one pixel. The rounding depends on the
// order, but a colour is one of only 253.
void add(double& sum, double part) {
  const std::atomic_ref shared(sum);
  double seen = shared.load(std::memory_order_relaxed);
  while (!shared.compare_exchange_weak(seen, seen + part, std::memory_order_relaxed)) {
  }
}

void raise(std::uint8_t& mark, std::uint8_t to) {
  const std::atomic_ref shared(mark);
  std::uint8_t seen = shared.load(std::memory_order_relaxed);
  while (seen < to && !shared.compare_exchange_weak(seen, to, std::memory_order_relaxed)) {
  }
}

}  // namespace

ThumbnailPixels::ThumbnailPixels(std::span<const std::uint64_t> shape)
    : shape_(picture_shape(shape, kMaxThumbnail)),
      shows_strength_(shape_.block_columns * shape_.block_rows >= kManyElements),
      values_(shows_strength_ ? kNothing : shape_) {
  if (!shows_strength_) return;
  squares_.resize(shape_.width() * shape_.height());
  marks_.resize(squares_.size());
}

void ThumbnailPixels::see(std::uint64_t first, std::span<const float> values, unsigned thread) {
  if (!shows_strength_) {
    values_.see(first, values, thread);
    return;
  }
  const auto& [elements, columns, rows, block_columns, block_rows] = shape_;
  std::array<double, kMaxThumbnail> sums{};  // one row of pixels
  const auto give = [&](std::uint64_t row) {
    const auto at = static_cast<std::size_t>(row / shape_.block_rows) * shape_.width();
    for (std::size_t x = 0; x < shape_.width(); ++x) {
      if (sums[x] > 0) add(squares_[at + x], sums[x]);
      sums[x] = 0;
    }
  };
  std::uint64_t row = first / columns;
  std::uint64_t column = first % columns;
  while (!values.empty()) {
    const std::uint64_t x = column / block_columns;
    const std::uint64_t end = std::min(columns, (x + 1) * block_columns);
    const auto part = values.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(values.size(), end - column)));
    const double sum = sum_of_squares(part);
    if (std::isfinite(sum)) {
      sums[x] += sum;
    } else {
      // Squares are never -infinity, so a sum is NaN only if a value is.
      const bool has_nan = std::isnan(sum);
      raise(marks_[static_cast<std::size_t>(row / shape_.block_rows) * shape_.width() + x],
            has_nan ? kNotANumber : kInfinite);
    }
    values = values.subspan(part.size());
    column += part.size();
    if (column < columns) continue;
    column = 0;
    if ((row + 1) % block_rows == 0 || values.empty()) give(row);
    ++row;
  }
  if (column > 0) give(row);
}

Thumbnail ThumbnailPixels::thumbnail(const ValueStats& stats) const {
  return shows_strength_ ? of_strengths() : of_values(stats);
}

Thumbnail ThumbnailPixels::of_values(const ValueStats& stats) const {
  Thumbnail thumbnail{shape_.width(), shape_.height(), {}};
  thumbnail.limit = 3 * stats.std.value_or(0);
  const bool has_one_sign = stats.min && (*stats.min > 0 || *stats.max < 0);
  if (has_one_sign && thumbnail.limit > 0) thumbnail.middle = *stats.mean;
  thumbnail.pixels = values_.colors(thumbnail.middle, thumbnail.limit);
  return thumbnail;
}

std::uint64_t ThumbnailPixels::elements_at(std::size_t x, std::size_t y) const {
  const std::uint64_t left = x * shape_.block_columns;
  const std::uint64_t right = std::min(shape_.columns, left + shape_.block_columns);
  const std::uint64_t top = y * shape_.block_rows;
  const std::uint64_t rows = std::min(shape_.rows - top, shape_.block_rows);
  std::uint64_t count = rows * (right - left);
  if (top + rows == shape_.rows) {  // only the last row may end early
    const std::uint64_t in_last = shape_.elements - (shape_.rows - 1) * shape_.columns;
    if (right > in_last) count -= right - std::max(left, in_last);
  }
  return count;
}

Thumbnail ThumbnailPixels::of_strengths() const {
  constexpr double kMost = 4;
  // Random numbers differ by this much: the logarithm of the RMS of n numbers has the deviation 1 /
  // sqrt(2 n).
  const auto in_pixel = static_cast<double>(shape_.block_columns * shape_.block_rows);
  const double least = std::clamp(8 / std::sqrt(2 * in_pixel), std::log(1.05), std::log(kMost));
  Thumbnail thumbnail{shape_.width(), shape_.height(), {}, Thumbnail::Shows::kStrength};
  // The means of the squares; negative for a pixel without elements.
  std::vector<double> means(squares_.size());
  double sum = 0;
  std::uint64_t finite = 0;
  for (std::size_t i = 0; i < means.size(); ++i) {
    const std::uint64_t count = elements_at(i % thumbnail.width, i / thumbnail.width);
    means[i] = count == 0 ? -1 : squares_[i] / static_cast<double>(count);
    if (count == 0 || marks_[i] != kFinite) continue;
    sum += squares_[i];
    finite += count;
  }
  const double middle = finite == 0 ? 0 : sum / static_cast<double>(finite);
  const auto strength = [&](double mean) { return std::log(mean / middle) / 2; };
  std::vector<double> distances;
  for (std::size_t i = 0; i < means.size(); ++i) {
    if (means[i] > 0 && marks_[i] == kFinite && middle > 0) {
      distances.push_back(std::abs(strength(means[i])));
    }
  }
  double limit = least;
  if (!distances.empty()) {
    // Use the distance that nearly all pixels have, because a single pixel must not hide how the
    // others differ.
    const auto far =
        distances.begin() + static_cast<std::ptrdiff_t>((distances.size() - 1) * 98 / 100);
    std::ranges::nth_element(distances, far);
    limit = std::clamp(*far, least, std::log(kMost));
  }
  thumbnail.middle = std::sqrt(middle);
  thumbnail.limit = std::exp(limit);
  thumbnail.pixels.reserve(means.size());
  for (std::size_t i = 0; i < means.size(); ++i) {
    double shown = means[i] > 0 && middle > 0 ? strength(means[i]) : middle > 0 ? -limit : 0;
    if (marks_[i] == kInfinite) shown = std::numeric_limits<double>::infinity();
    if (marks_[i] == kNotANumber) shown = std::numeric_limits<double>::quiet_NaN();
    thumbnail.pixels.push_back(means[i] < 0 ? picture_color_of_none()
                                            : picture_color(static_cast<float>(shown), limit));
  }
  return thumbnail;
}

}  // namespace stfs
