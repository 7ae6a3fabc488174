// Reads and validates the header of a GGUF file (ggml's gguf.h and docs/gguf.md).
//
// The layout of a file. It is little-endian, and only the data and each tensor in it are aligned:
//
//   "GGUF" | version u32 | tensors i64 | keys i64
//   key: string | type u32 | value                                       for each key
//   name: string | rank u32 | dims i64 each | type u32 | offset u64      for each tensor
//   zeros up to a multiple of the alignment, if there are tensors
//   data: the tensors in the order above, each followed by zeros up to a multiple of the alignment
//
// A string is a length, u64, and its bytes. An array is the type of its elements, u32, their
// number, u64, and the elements. The alignment is the value of `general.alignment`, or 32. A file
// has the fastest dimension of a tensor first; a Header has the shape row-major.
//
// stfs accepts the files that ggml's reader and llama.cpp's loader accept, with these exceptions:
// it refuses a size over 64 bits, a key over 65,535 bytes (the format's limit), 2^32 tensors, and
// more than 4,194,304 keys or 64 MiB of their texts. As in ggml, a name ends at its first NUL; a
// key is kept whole, but is looked up by the part before its first NUL; and the zeros after the
// last tensor may be missing.
//
// The time and the memory are linear in the size of the header. Arrays, and strings that would need
// much memory, are not kept in memory; MetadataValue::encoded is their place in the file.
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
// The beginning of a key that gives a tensor another shape than the stored one. The rest of the key
// is the tensor's name.
inline constexpr std::string_view kGgufOriginalShapeKey = "comfy.gguf.orig_shape.";

// Returns the part of a text before its first NUL, or the whole text.
std::string_view up_to_nul(std::string_view text);
// Returns the index of the entry that ggml finds for a key without a NUL: the first entry in the
// file with a key that is equal up to its first NUL. Returns nullopt if there is none. Call
// Metadata::sort() first.
std::optional<std::size_t> find_gguf_key(const Metadata& metadata, std::string_view key);

bool is_gguf(std::span<const std::byte> first);

// Returns the number of bytes to read first. It is a constant, because a file does not contain the
// length of its header.
std::uint64_t gguf_header_length(std::span<const std::byte> first);

// Reads the header of a source. Header::raw is everything before the data. Reads in growing pieces,
// because the length of a header is not known before. `place` begins the messages of errors. Throws
// Error: kUnreadable, kDuplicateTensor or kGguf*.
Header read_gguf(const Source& source, const std::string& place);

// Gives tensors the shapes that the metadata contains. Changes a tensor only if it has the same
// number of elements, and if no earlier call has changed it. `shapes` must be sorted by name.
void apply_original_shapes(std::span<const OriginalShape> shapes, Header& header);

// Returns the bytes of an encoded value of this type, or 0 for strings and arrays.
std::uint64_t gguf_value_size(ValueType type);
// Returns the name of a type, as in gguf-py but in lower case: "uint32", "string".
std::string_view value_type_name(ValueType type);

// Writes a number or a bool, encoded in gguf_value_size() bytes, as JSON. NaN and infinity become
// null.
void write_gguf_number(ValueType type, std::span<const std::byte> bytes, TextWriter& out);

}  // namespace stfs
