// Prepares texts of a user or of a file, and numbers, for a page or a picture: as HTML that
// contains no tag, no control character and no character that reorders text, or as JSON without
// `<`.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs::markup {

// Escapes only what HTML requires. Use it for a text that is already safe.
std::string html_of(std::string_view text);

// html_of(printable(text)).
std::string escaped(std::string_view text);

// Returns html_of() of a sentence that is made printable; names in it may have been made printable
// before.
std::string sentence(std::string_view text);

// Returns a text of at most about `most` bytes, with the rest left out in the middle.
std::string shortened(std::string_view text, std::size_t most = 400);

// A name, shortened and escaped.
std::string name_of(std::string_view name);

// Shortens a printable text so that html_of() of it has at most about `most` bytes too.
std::string fitted(std::string_view text, std::size_t most);

// Returns a JSON string without `<`, which could begin a tag or a comment. Use it for a text that
// is already safe.
std::string json_of(std::string_view text);

// json_of(printable(text)).
std::string json_text(std::string_view text);

std::string grouped(std::uint64_t count);                         // 1234567 -> "1,234,567"
std::string counted(std::uint64_t count, std::string_view noun);  // "1 file", "2 files"
std::string human_count(std::uint64_t count);                     // 6738415616 -> "6.74 B"
// Formats a number as JavaScript reads it. A finite value stays finite.
std::string number(double value, int digits);
std::string json_number(double value, int digits);  // NaN and infinity become null

inline constexpr std::size_t kMaxDimensions = 16;  // the maximum that shape_text() shows
std::string shape_text(std::span<const std::uint64_t> shape);  // "4096×11008"

}  // namespace stfs::markup
