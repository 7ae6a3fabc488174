// Transposes matrices with elements of 16 or 32 bits.
//
// Thread safety: a pure function.
#pragma once

#include <cstddef>

namespace stfs {

// Writes the transpose of a matrix with elements of `width` bytes, 2 or 4. The pitches are in
// bytes.
void transpose(const std::byte* in, std::size_t width, std::size_t rows, std::size_t columns,
               std::size_t in_pitch, std::byte* out, std::size_t out_pitch);

}  // namespace stfs
