// Writes the header of a NumPy file, version 1.0 (numpy/lib/format.py, "Format Version 1.0"):
//
//   "\x93NUMPY" 0x01 0x00 | u16 LE: length of the rest | a Python dict, spaces, '\n'
//
// The spaces let the array begin at a multiple of 64 bytes.
//
// Thread safety: npy_header() may be called from any thread.
#pragma once

#include "core/format/npy_header.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// Returns the header of an array in C order. `code` is TypeInfo::npy, and the rank must be at most
// kNpyMaxRank.
std::string npy_header(std::string_view code, std::span<const std::uint64_t> shape);

}  // namespace stfs
