// Reads the header of a NumPy file (numpy/lib/format.py, versions 1.0 to 3.0):
//
//   "\x93NUMPY" | major, minor | length, u16 or u32 LE | a Python dict, spaces, '\n' | the array
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The maximum number of dimensions of a NumPy array (NPY_MAXDIMS; 32 before NumPy 2).
inline constexpr std::size_t kNpyMaxRank = 64;

struct NpyHeader {
  std::uint64_t length = 0;  // bytes of the header; the array follows it
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  bool has_opaque =
      false;  // the elements have no type, as `|V2`; the last dimension counts their bytes
  bool is_fortran = false;  // the first dimension is the fastest
  std::uint64_t bytes = 0;  // bytes of the array
  // Why stfs cannot show the array, or "" if it can. If it is not "", only `length` is valid.
  std::string refusal;
};

inline constexpr std::size_t kNpyPrefix = 12;  // bytes that npy_header_length() needs
// Returns the length of a header in bytes from the first bytes of a file. Returns nullopt if they
// do not begin a header, or if its dictionary has more than 1 MiB.
std::optional<std::uint64_t> npy_header_length(std::string_view first);

// Parses a header that has exactly the length that npy_header_length() has returned. Never throws
// Error: see NpyHeader::refusal.
NpyHeader parse_npy_header(std::string_view header);

}  // namespace stfs
