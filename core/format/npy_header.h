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
  std::uint64_t length = 0;  // bytes, where the array begins
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  bool has_opaque =
      false;  // elements of no type, `|V2`: their bytes are one more dimension, the last
  bool is_fortran = false;  // the first dimension is the fastest
  std::uint64_t bytes = 0;  // of the array
  // Why it is no array of a type that stfs knows; "" for one that is. What stands above is not set
  // then, but perhaps `length`.
  std::string refusal;
};

// The bytes that a header takes, as its first ones tell; nullopt where they are no header's, and
// where it takes over 1 MiB.
inline constexpr std::size_t kNpyPrefix = 12;  // bytes to tell it
std::optional<std::uint64_t> npy_header_length(std::string_view first);

// `header` is as long as npy_header_length() said.
NpyHeader parse_npy_header(std::string_view header);

}  // namespace stfs
