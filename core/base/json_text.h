// Checks and changes JSON texts before they are parsed.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::uint64_t kMaxJson = 8 << 20;  // bytes of a bounded text
inline constexpr std::size_t kMaxJsonValues =
    1 << 19;  // enough for a model with an entry for each of 100,000 modules

// Returns true if a text may be parsed: if it has at most kMaxJson bytes, about kMaxJsonValues
// values and 64 levels. Without these limits a small text could need much memory, because a parsed
// value takes up to fifty times the size of its text.
bool is_bounded_json(std::string_view text);

// Returns the text with `null` in place of each Infinity, -Infinity and NaN outside of strings.
// Python writes these words, but JSON does not have them. Offsets after a replacement therefore
// shift.
std::string without_infinities(std::string_view text);

}  // namespace stfs
