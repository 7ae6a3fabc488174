// The header of a NumPy file, version 1.0 (numpy/lib/format.py, "Format Version 1.0"):
//
//   "\x93NUMPY" 0x01 0x00 | u16 LE: length of what follows | a Python dict, spaces, '\n'
//
// padded so that the array begins at a multiple of 64 bytes.
#pragma once

#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// The array interface's code of a type, "<f4". A type that NumPy lacks is never passed off as
// another: BF16 is "<V2" and the F8 types "|V1", as ml_dtypes writes them. None for the sub-byte
// types.
std::optional<std::string_view> npy_code(DType dtype);

// The most dimensions that an array of NumPy has (NPY_MAXDIMS; 32 before NumPy 2).
inline constexpr std::size_t kNpyMaxRank = 64;

// The header for an array in C order, of kNpyMaxRank dimensions or fewer.
std::string npy_header(std::string_view code, std::span<const std::uint64_t> shape);

}  // namespace stfs
