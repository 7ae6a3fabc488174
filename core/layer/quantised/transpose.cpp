#include "core/layer/quantised/transpose.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace stfs {
namespace {

template <class T>
struct Lanes {
  static constexpr int kCount = 16 / sizeof(T);
  using Vector [[gnu::vector_size(16)]] = T;
};

// Interleaves two vectors element by element: `first` gets the elements of their first halves,
// `second` the elements of their second halves.
void zip(Lanes<std::uint16_t>::Vector a, Lanes<std::uint16_t>::Vector b,
         Lanes<std::uint16_t>::Vector& first, Lanes<std::uint16_t>::Vector& second) {
  first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
void zip(Lanes<std::uint32_t>::Vector a, Lanes<std::uint32_t>::Vector b,
         Lanes<std::uint32_t>::Vector& first, Lanes<std::uint32_t>::Vector& second) {
  first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

// Transposes a square as wide as a vector, by interleaving row i with row i + n/2, and doing so
// log2(n) times.
template <class T>
void transpose_square(const std::byte* in, std::size_t in_pitch, std::byte* out,
                      std::size_t out_pitch) {
  constexpr int kCount = Lanes<T>::kCount;
  std::array<typename Lanes<T>::Vector, kCount> rows;
  std::array<typename Lanes<T>::Vector, kCount> zipped;
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(&rows[i], in + i * in_pitch, 16);
  for (int done = 1; done < kCount; done *= 2) {
    for (std::size_t i = 0; i < kCount / 2; ++i) {
      zip(rows[i], rows[i + kCount / 2], zipped[2 * i], zipped[2 * i + 1]);
    }
    rows = zipped;
  }
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(out + i * out_pitch, &rows[i], 16);
}

template <class T>
void transpose_all(const std::byte* in, std::size_t rows, std::size_t columns, std::size_t in_pitch,
                   std::byte* out, std::size_t out_pitch) {
  constexpr std::size_t kCount = Lanes<T>::kCount;
  const std::size_t whole_rows = rows / kCount * kCount;
  const std::size_t whole_columns = columns / kCount * kCount;
  for (std::size_t column = 0; column < whole_columns; column += kCount) {
    for (std::size_t row = 0; row < whole_rows; row += kCount) {
      transpose_square<T>(in + row * in_pitch + column * sizeof(T), in_pitch,
                          out + column * out_pitch + row * sizeof(T), out_pitch);
    }
  }
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t row = column < whole_columns ? whole_rows : 0; row < rows; ++row) {
      std::memcpy(out + column * out_pitch + row * sizeof(T),
                  in + row * in_pitch + column * sizeof(T), sizeof(T));
    }
  }
}

}  // namespace

void transpose(const std::byte* in, std::size_t width, std::size_t rows, std::size_t columns,
               std::size_t in_pitch, std::byte* out, std::size_t out_pitch) {
  const auto transpose_it =
      width == 2 ? transpose_all<std::uint16_t> : transpose_all<std::uint32_t>;
  transpose_it(in, rows, columns, in_pitch, out, out_pitch);
}

}  // namespace stfs
