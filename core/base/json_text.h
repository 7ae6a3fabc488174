// JSON as a text, before it is parsed.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::uint64_t kMostJson = 8 << 20;  // bytes of a bounded text
inline constexpr std::size_t kMostJsonValues =
    1 << 19;  // a model with an entry for each of 100,000 modules

// Whether a text is short and flat enough to be parsed: a value takes fifty times the memory of its
// text.
bool is_bounded_json(std::string_view text);

// The text with null for Infinity, -Infinity and NaN outside of strings, which Python writes and
// JSON has not. What stands behind them moves.
std::string without_infinities(std::string_view text);

}  // namespace stfs
