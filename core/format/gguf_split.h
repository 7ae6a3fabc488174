// Split GGUF files, as llama.cpp writes and reads them: PREFIX-00001-of-00003.gguf and so on. Each
// part is a complete GGUF file, and its metadata contains the number of the part. All other
// metadata is in the first part, which may have no tensors.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/header.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The keys that only parts have; a merged file has none of them.
inline constexpr std::string_view kSplitNumber = "split.no";
inline constexpr std::string_view kSplitCount = "split.count";
inline constexpr std::string_view kSplitTensors = "split.tensors.count";
bool is_split_key(std::string_view key);

struct GgufSplit {
  std::uint32_t number = 0;   // the number of the part, from 0
  std::uint32_t count = 1;    // the number of parts, at least 2
  std::uint64_t tensors = 0;  // the number of tensors in all parts together
};

// Returns the number of a part and the counts, from its header. Returns nullopt for a whole file,
// which has no split.count or a count of 1. Throws Error kGgufSplit if a key is missing, has
// another type or is out of its range.
std::optional<GgufSplit> gguf_split(const Header& header, const std::string& place);

// A name of a part in llama.cpp's form: PREFIX-00002-of-00003.gguf.
struct GgufPartName {
  std::string_view prefix;
  std::uint32_t number = 0;  // from 0, unlike in the name
  std::uint32_t count = 0;

  std::string of(std::uint32_t other) const;  // the name of another part; `other` counts from 0
};
// Returns nullopt if `name` does not have this form. The result borrows from `name`.
std::optional<GgufPartName> gguf_part_name(std::string_view name);

// Returns the names of all parts in their order. `first` is the name of the first part and `split`
// the content of its header. Throws Error kGgufSplit if `split` is not part 0, or if `first` does
// not end in -00001-of-COUNT.gguf.
std::vector<std::string> gguf_parts(const std::string& first, const GgufSplit& split,
                                    const std::string& place);

// Checks that part `number` (from 0) of a split file belongs to the first part. Throws Error
// kGgufSplit.
void check_gguf_part(const Header& part, std::uint32_t number, const GgufSplit& first,
                     const std::string& place);

// Checks the number of tensors that all parts have against the header of the first part. Throws
// Error kGgufSplit.
void check_gguf_tensors(std::uint64_t found, const GgufSplit& first, const std::string& place);

}  // namespace stfs
