// Text for terminals, JSON and tables.
//
// Thread safety: the functions may be called from any thread; one thread at a time uses a
// TextWriter.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// Returns `text` in a form that is safe for a terminal, which would obey control sequences in a
// name. Escapes (`\n`, `\x1b`, `\u202e`) replace control characters (C0, DEL, C1), Unicode marks
// that reorder or hide text, the characters that XML cannot contain (U+FFFE, U+FFFF), and bytes
// that are not UTF-8. A backslash is doubled.
std::string printable(std::string_view text);

// Returns printable(typed) in double quotes, with `"` escaped and without the secrets of URLs
// (without_queries.h). If the text has more than 200 bytes, only the first and the last 96 bytes
// are shown, with "..." between them.
std::string in_quotes(std::string_view typed);

// Returns `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// Returns a JSON text in a form that is safe for a terminal. DEL, C1 and the marks that printable()
// escapes become escapes such as `\u009b`, which mean the same in a JSON string. Leaves control
// characters below 0x20 unchanged, because valid JSON contains them only as whitespace.
std::string printable_json(std::string_view json);

// Appends to a text, or only counts the bytes. In this way one function both writes a text and
// computes its size. The text must outlive the writer.
class TextWriter {
 public:
  TextWriter() = default;  // only counts
  explicit TextWriter(std::string& text) : text_(&text) {}

  TextWriter& add(std::string_view part);
  TextWriter& number(std::uint64_t value);
  TextWriter& json(std::string_view part);         // adds json_string(part)
  TextWriter& json_inside(std::string_view part);  // adds json_string(part) without its quotes
  TextWriter& printable(std::string_view part);    // adds printable(part)

  std::uint64_t size() const { return size_; }  // bytes written or counted

 private:
  std::string* text_ = nullptr;
  std::uint64_t size_ = 0;
};

// Returns true if `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

// Returns the largest position that is not greater than `n` and at which the text can be cut
// without splitting a UTF-8 character. Returns `n` if the bytes around it are not UTF-8, and
// text.size() if `n` is larger.
std::size_t utf8_floor(std::string_view text, std::size_t n);

// Compares texts in natural order: digits compare as numbers, so "layers.2" is less than
// "layers.10". Texts that differ only in leading zeros compare bytewise, so that only equal texts
// compare as equal.
std::strong_ordering natural_order(std::string_view a, std::string_view b);

// Appends the sort key of `text` to `keys`. Keys compare bytewise as their texts do in natural
// order. Texts that differ only in leading zeros have equal keys.
void append_natural_key(std::string& keys, std::string_view text);

// Returns `text` with the ASCII letters A to Z in lower case.
std::string lower_case(std::string_view text);

// Returns two lower-case hex digits per byte.
std::string hex(std::string_view bytes);

// Returns the least number of insertions, deletions and replacements of bytes that turn one text
// into the other, or `most` + 1 if more than `most` are needed.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most);

// Write a shape as JSON without spaces: "[4096,4096]", "[]".
void write_shape(std::span<const std::uint64_t> shape, TextWriter& out);
std::string shape_json(std::span<const std::uint64_t> shape);

// Returns a size as text for users: "1.5 KiB" for 1536, "17 B" for 17.
std::string human_bytes(std::uint64_t bytes);

// Returns a time as text in UTC, in the form of RFC 3339: "2026-01-31T08:00:00.000000000Z". The
// time is given in seconds and nanoseconds since 1970 (time(2)). Returns "@SECONDS" if the year is
// not in 0 to 9999.
std::string rfc3339(std::int64_t seconds, std::int64_t nanoseconds);

}  // namespace stfs
