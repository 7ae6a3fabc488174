// Reads and validates the header of a safetensors file.
//
// The layout of a file (the format's README, safetensors/src/tensor.rs):
//
//   0        8               8+N                         end of file
//   | N      | JSON, N bytes | tensor bytes, without gaps |
//     u64 LE
//
// The rules, their order and their names are the same as in the reference reader. stfs adds one
// rule: no JSON object has the same key twice.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::uint64_t kMaxJsonLength = 100'000'000;  // the reference's MAX_HEADER_SIZE

// Parses and validates the JSON of a header. `data_length` is the number of bytes after it, which
// is the size of the file minus 8+N. `place` begins the messages of errors. Throws Error with the
// code of the first broken rule.
Header parse_safetensors(std::string_view json, std::uint64_t data_length,
                         const std::string& place);

// Reads the header of a source, then does the same. Also throws Error kUnreadable.
Header read_safetensors(const Source& source, const std::string& place);

// Returns the bytes of N and of the header in a file that begins with `first`; at most 8 +
// kMaxJsonLength. Checks nothing.
std::uint64_t safetensors_header_length(std::span<const std::byte> first);

}  // namespace stfs
