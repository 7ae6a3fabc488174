// Split GGUF files, as llama.cpp writes and reads them: PREFIX-00001-of-00003.gguf and so on. Each
// part is a whole GGUF file and says in its metadata which part it is. All other metadata stand in
// the first part, which may have no tensors.
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
  std::uint32_t number = 0;   // of the part, from 0
  std::uint32_t count = 1;    // parts, at least 2
  std::uint64_t tensors = 0;  // of all parts together
};

// The place of a part, read from its header; nullopt for a whole file (no split.count, or one
// part). Throws Error kGgufSplit for a key that is missing, of another type or out of its range.
std::optional<GgufSplit> gguf_split(const Header& header, const std::string& place);

// A name as llama.cpp gives it to a part: PREFIX-00002-of-00003.gguf.
struct GgufPartName {
  std::string_view prefix;
  std::uint32_t number = 0;  // from 0
  std::uint32_t count = 0;

  std::string of(std::uint32_t other) const;  // the name of another part
};
std::optional<GgufPartName> gguf_part_name(std::string_view name);

// The names of all parts, in their order, from that of the first. Throws Error kGgufSplit when
// `first` is not part 0 or does not end in -00001-of-COUNT.gguf.
std::vector<std::string> gguf_parts(const std::string& first, const GgufSplit& split,
                                    const std::string& place);

// Checks part `number` (from 0) of a split file against the first part. Throws Error kGgufSplit.
void check_gguf_part(const Header& part, std::uint32_t number, const GgufSplit& first,
                     const std::string& place);

// Checks the number of tensors found in all parts. Throws Error kGgufSplit.
void check_gguf_tensors(std::uint64_t found, const GgufSplit& first, const std::string& place);

}  // namespace stfs
