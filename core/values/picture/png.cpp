#include "core/values/picture/png.h"

#include "core/values/moments.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <string_view>

namespace stfs {
namespace {

// --- colours: 0 to 252 are shades, 126 is zero

constexpr int kZero = 126;
constexpr std::uint8_t kInfinity = 253;
constexpr std::uint8_t kNan = 254;
constexpr std::uint8_t kNone = 255;

struct Color {
  int red, green, blue;
};
constexpr Color kWhite{255, 255, 255};
// At half and at full strength. Lightness decreases evenly, from 100 to 45 and 35 (CIELAB).
constexpr std::array kPositive = {Color{244, 165, 130}, Color{202, 48, 40}};
constexpr std::array kNegative = {Color{120, 180, 220}, Color{20, 80, 165}};

constexpr int between(int from, int to, int step, int steps) {
  return (from * (steps - step) + to * step + steps / 2) / steps;
}
constexpr Color shade(const std::array<Color, 2>& strong, int strength) {
  constexpr int kHalf = kZero / 2;
  const bool is_upper = strength > kHalf;
  const Color& from = is_upper ? strong[0] : kWhite;
  const Color& to = is_upper ? strong[1] : strong[0];
  const int step = is_upper ? strength - kHalf : strength;
  return {between(from.red, to.red, step, kHalf), between(from.green, to.green, step, kHalf),
          between(from.blue, to.blue, step, kHalf)};
}

std::string palette() {
  std::string bytes;
  const auto add = [&bytes](const Color& color) {
    for (const int part : {color.red, color.green, color.blue}) {
      bytes += static_cast<char>(static_cast<unsigned char>(part));
    }
  };
  for (int i = 0; i <= 2 * kZero; ++i) {
    add(i < kZero ? shade(kNegative, kZero - i) : shade(kPositive, i - kZero));
  }
  add({0, 255, 0});      // kInfinity
  add({0, 0, 0});        // kNan
  add({128, 128, 128});  // kNone
  return bytes;
}

// --- pixels

// The inverse of key_of().
constexpr float value_of(std::uint32_t key) {
  return std::bit_cast<float>(key >> 1 | (~key << 31));
}

// Sets the pixel to `key` if `key` is larger. Atomic, because two threads may have elements of one
// block.
void raise(std::uint32_t& pixel, std::uint32_t key) {
  const std::atomic_ref shared(pixel);
  std::uint32_t seen = shared.load(std::memory_order_relaxed);
  while (seen < key && !shared.compare_exchange_weak(seen, key, std::memory_order_relaxed)) {
  }
}

std::uint64_t pixels_for(std::uint64_t elements, std::uint64_t block) {
  return (elements + block - 1) / block;
}

// --- the file (PNG, third edition; RFC 1950; RFC 1951)

void add_u32(std::string& out, std::size_t value) {  // big-endian
  for (const unsigned shift : {24U, 16U, 8U, 0U}) out += static_cast<char>(value >> shift & 0xFF);
}

// Appends a chunk; `add` appends its data.
template <class Add>
void add_chunk(std::string& out, std::string_view type, const Add& add) {
  const std::size_t begin = out.size();
  out.append(4, '\0').append(type);
  add();
  std::string length;
  add_u32(length, out.size() - begin - 8);
  out.replace(begin, 4, length);
  const auto* const summed = reinterpret_cast<const Bytef*>(out.data() + begin + 4);
  add_u32(out, ::crc32_z(0, summed, out.size() - begin - 4));
}

constexpr std::size_t kMaxStored = 65535;  // the maximum bytes of a stored block

// Appends a row to the deflate stream: its filter byte and its pixels.
void add_stored(std::string& out, std::string_view row, bool is_last_row) {
  while (!row.empty()) {
    const std::string_view block = row.substr(0, kMaxStored);
    row.remove_prefix(block.size());
    out += is_last_row && row.empty() ? '\1' : '\0';
    for (const std::size_t length : {block.size(), ~block.size()}) {
      out += static_cast<char>(length & 0xFF);
      out += static_cast<char>(length >> 8 & 0xFF);
    }
    out += block;
  }
}

}  // namespace

std::size_t PictureShape::width() const {
  return static_cast<std::size_t>(pixels_for(columns, block_columns));
}
std::size_t PictureShape::height() const {
  return static_cast<std::size_t>(pixels_for(rows, block_rows));
}

std::uint64_t PictureShape::png_bytes() const {
  constexpr std::uint64_t kFixed = 8 + 25 + 780 + 12 + 2 + 4;  // ... IHDR PLTE IEND zlib Adler-32
  const std::uint64_t row = width() + 1;
  return kFixed + height() * (12 + row + 5 * ((row + kMaxStored - 1) / kMaxStored));
}

PictureShape picture_shape(std::span<const std::uint64_t> shape, std::uint64_t most) {
  PictureShape picture{1, 1, 1, 1, 1};
  for (const std::uint64_t dim : shape) picture.elements *= dim;
  if (shape.size() > 1) {
    picture.columns = shape.back();
  } else {
    while (picture.columns < pixels_for(picture.elements, picture.columns)) picture.columns *= 2;
  }
  picture.rows = pixels_for(picture.elements, picture.columns);
  picture.block_columns = pixels_for(picture.columns, most);
  picture.block_rows = pixels_for(picture.rows, most);
  return picture;
}

Pixels::Pixels(const PictureShape& shape) : shape_(shape), keys_(shape.width() * shape.height()) {}

void Pixels::see(std::uint64_t first, std::span<const float> values, unsigned) {
  const auto& [elements, columns, rows, block_columns, block_rows] = shape_;
  std::uint64_t row = first / columns;
  std::uint64_t column = first % columns;
  while (!values.empty()) {
    const auto in_row =
        static_cast<std::size_t>(std::min<std::uint64_t>(values.size(), columns - column));
    std::uint32_t* pixel =
        keys_.data() + row / block_rows * shape_.width() + column / block_columns;
    std::uint64_t in_block = block_columns - column % block_columns;
    for (std::size_t i = 0; i < in_row; ++pixel) {
      const auto end = static_cast<std::size_t>(std::min<std::uint64_t>(in_row, i + in_block));
      const std::uint32_t key = end == i + 1 ? key_of(std::bit_cast<std::uint32_t>(values[i]))
                                             : largest_key(values.subspan(i, end - i));
      i = end;
      if (block_columns == 1 && block_rows == 1) {
        *pixel = key;
      } else {
        raise(*pixel, key);
      }
      in_block = block_columns;
    }
    values = values.subspan(in_row);
    column = 0;
    ++row;
  }
}

std::uint8_t picture_color(float value, double limit) {
  if (std::isnan(value)) return kNan;
  if (std::isinf(value)) return kInfinity;
  if (value == 0) return kZero;
  // Equal values have no deviation, so only their sign is shown.
  const double strength = limit > 0   ? std::clamp(static_cast<double>(value) / limit, -1.0, 1.0)
                          : value > 0 ? 1
                                      : -1;
  return static_cast<std::uint8_t>(kZero + static_cast<int>(std::nearbyint(strength * kZero)));
}

std::uint8_t picture_color_of_none() { return kNone; }

std::vector<std::uint8_t> Pixels::colors(double middle, double limit) const {
  std::vector<std::uint8_t> colors;
  colors.reserve(keys_.size());
  for (std::size_t y = 0; y < shape_.height(); ++y) {
    for (std::size_t x = 0; x < shape_.width(); ++x) {
      const std::uint64_t first = y * shape_.block_rows * shape_.columns + x * shape_.block_columns;
      const float value = value_of(keys_[colors.size()]) - static_cast<float>(middle);
      colors.push_back(first < shape_.elements ? picture_color(value, limit) : kNone);
    }
  }
  return colors;
}

std::string Pixels::png(const ValueStats& stats) const {
  const std::vector<std::uint8_t> pixels = colors(0, 3 * stats.std.value_or(0));
  const std::size_t width = shape_.width();
  const std::size_t height = shape_.height();
  std::string out;
  out.reserve(static_cast<std::size_t>(shape_.png_bytes()));
  out += std::string_view("\x89PNG\r\n\x1a\n");
  add_chunk(out, "IHDR", [&] {
    add_u32(out, width);
    add_u32(out, height);
    out.append("\x08\x03\0\0\0", 5);  // 8 bits, a palette
  });
  add_chunk(out, "PLTE", [&] { out += palette(); });
  uLong adler = ::adler32_z(0, nullptr, 0);
  std::string row(width + 1, '\0');  // filter 0: none
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < width; ++x) row[x + 1] = static_cast<char>(pixels[y * width + x]);
    adler = ::adler32_z(adler, reinterpret_cast<const Bytef*>(row.data()), row.size());
    const bool is_last = y + 1 == height;
    add_chunk(out, "IDAT", [&] {
      if (y == 0) out += "\x78\x01";  // zlib: deflate, a window of 32 KiB, no compression
      add_stored(out, row, is_last);
      if (is_last) add_u32(out, adler);
    });
  }
  add_chunk(out, "IEND", [] {});
  return out;
}

}  // namespace stfs
