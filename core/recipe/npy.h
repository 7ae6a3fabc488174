// The header of a NumPy file, version 1.0 (numpy/lib/format.py, "Format Version 1.0"):
//
//   "\x93NUMPY" 0x01 0x00 | u16 LE: length of what follows | a Python dict, spaces, '\n'
//
// padded so that the array begins at a multiple of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// The most dimensions that an array of NumPy has (NPY_MAXDIMS; 32 before NumPy 2).
inline constexpr std::size_t kNpyMaxRank = 64;

// The header for an array in C order, of elements of this code (TypeInfo::npy), of kNpyMaxRank
// dimensions or fewer.
std::string npy_header(std::string_view code, std::span<const std::uint64_t> shape);

}  // namespace stfs
