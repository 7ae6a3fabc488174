// The header of a safetensors file: JSON text to validated tensors.
//
// The layout of a file (the format's README, safetensors/src/tensor.rs):
//
//   0        8              8+N                                   end of file
//   | N      | JSON, N bytes | tensor bytes, one after the other   |
//     u64 LE
//
// The rules, their order and their names are the reference reader's, with one addition: a JSON key
// that occurs twice in the same object is refused wherever it stands.
#pragma once

#include "core/format/header.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace stfs {

// Parses and validates the JSON of a header. `data_length` is the size of the file less 8+N, in
// bytes. `place` begins the messages. Throws Error with the code of the first rule that is broken.
Header parse_safetensors(std::string_view json, std::uint64_t data_length,
                         const std::string& place);

// Reads and parses the header of a source.
Header read_safetensors(const Source& source, const std::string& place);

}  // namespace stfs
