// Texts of a user or of a file, and numbers, as a page or a picture shows them: HTML that holds no
// tag, no control character and no mark that reorders text, or JSON without `<`.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs::markup {

// Only what HTML demands: for a text that is safe already.
std::string html_of(std::string_view text);

// html_of(printable(text)).
std::string escaped(std::string_view text);

// html_of() of a sentence, made printable, in which names may have been made visible already.
std::string sentence(std::string_view text);

// At most about `most` bytes; the rest is left out in the middle.
std::string shortened(std::string_view text, std::size_t most = 400);

// A name, shortened and escaped.
std::string name_of(std::string_view name);

// A printable text, shortened so that html_of() of it has at most about `most` bytes too.
std::string fitted(std::string_view text, std::size_t most);

// A JSON string without `<`, which would begin a tag or a comment: for a text that is safe already.
std::string json_of(std::string_view text);

// json_of(printable(text)).
std::string json_text(std::string_view text);

std::string grouped(std::uint64_t count);                         // 1234567 -> "1,234,567"
std::string counted(std::uint64_t count, std::string_view noun);  // "1 file", "2 files"
std::string human_count(std::uint64_t count);                     // 6738415616 -> "6.74 B"
std::string number(double value, int digits);       // as JavaScript reads it: finite if it is
std::string json_number(double value, int digits);  // NaN and infinity are null

inline constexpr std::size_t kMostDimensions = 16;             // that shape_text() shows
std::string shape_text(std::span<const std::uint64_t> shape);  // "4096×11008"

}  // namespace stfs::markup
