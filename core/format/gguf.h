// Reads and validates the header of a GGUF file (ggml's gguf.h and docs/gguf.md).
//
// The layout of a file, little-endian, nothing aligned but the data and each tensor in it:
//
//   "GGUF" | version u32 | tensors i64 | keys i64
//   key: string | type u32 | value                        once a key
//   name: string | rank u32 | dims i64 each | type u32 | offset u64      once a tensor
//   zeros to a multiple of the alignment, where there are tensors
//   data: the tensors in the order above, each followed by zeros to a multiple of the alignment
//
// A string is a length, u64, and its bytes. An array is the type of its elements, u32, their
// number, u64, and the elements. The alignment is the value of `general.alignment`, or 32. A file
// gives the dimensions of a tensor with the fastest first; a Header has them row-major.
//
// Files that ggml's reader and llama.cpp's loader accept are accepted, except that a size over 64
// bits, a key over 65,535 bytes (the format's limit), 2^32 tensors, and more than 4,194,304 keys or
// 64 MiB of their texts are refused. As there, a name ends at its first NUL, a key is kept whole
// and found by what stands before its first NUL, and the zeros behind the last tensor may be
// missing.
//
// The time and the memory are linear in the size of the header. Arrays, and strings that would need
// much memory, are not kept: MetadataValue says where they stand.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/header.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kGgufName = "GGUF";
inline constexpr std::string_view kGgufAlignmentKey = "general.alignment";
// The beginning of a key that gives a tensor a shape other than the stored one; its name follows.
inline constexpr std::string_view kGgufOriginalShapeKey = "comfy.gguf.orig_shape.";

std::string_view up_to_nul(std::string_view text);
// The entry that ggml finds for a key without a NUL: the first in the file that is equal up to one.
// Needs Metadata::sort().
std::optional<std::size_t> find_gguf_key(const Metadata& metadata, std::string_view key);

bool is_gguf(std::span<const std::byte> first);

// The bytes of a header that are read first: its length stands nowhere.
std::uint64_t gguf_header_length(std::span<const std::byte> first);

// Reads the header of a source. Its Header::raw is all that stands before the data. Reads in
// growing pieces, because the length of a header is not known before. `place` begins the messages
// of errors. Throws Error: kUnreadable, kDuplicateTensor or kGguf*.
Header read_gguf(const Source& source, const std::string& place);

// Gives tensors the shapes that metadata tell, where a tensor has as many elements and no such
// shape yet. `shapes` are sorted by name.
void apply_original_shapes(std::span<const OriginalShape> shapes, Header& header);

// Bytes of an encoded value of a type of one size; 0 for strings and arrays.
std::uint64_t gguf_value_size(ValueType type);
// The name of a type, as gguf-py has it in lower case: "uint32", "string".
std::string_view value_type_name(ValueType type);

// Writes a number or a bool of gguf_value_size() bytes as JSON. NaN and infinity become null.
void write_gguf_number(ValueType type, std::span<const std::byte> bytes, TextWriter& out);

}  // namespace stfs
