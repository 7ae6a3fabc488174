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

// `text` made safe for a terminal, which would obey the control sequences in a name. Control
// characters (C0, DEL, C1), Unicode marks that reorder or hide text, what XML cannot hold (U+FFFE,
// U+FFFF), and bytes that are not UTF-8 become escapes (`\n`, `\x1b`, `\u202e`); a backslash is
// doubled.
std::string printable(std::string_view text);

// printable(text) in double quotes, with `"` escaped. Of a text over 200 bytes, the first and last
// 96 bytes with "..." between them.
std::string in_quotes(std::string_view typed);

// `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// A JSON text for a terminal: DEL, C1 and the marks that printable() escapes become `\u009b`, which
// mean the same in its strings. C0 stays: JSON has it between its values alone.
std::string printable_json(std::string_view json);

// Appends to a text, or only counts the bytes. The function that writes a text so computes its size
// too.
class TextWriter {
 public:
  TextWriter() = default;  // counts
  explicit TextWriter(std::string& text) : text_(&text) {}

  TextWriter& add(std::string_view part);
  TextWriter& number(std::uint64_t value);
  TextWriter& json(std::string_view part);         // json_string(part)
  TextWriter& json_inside(std::string_view part);  // json_string(part) without its quotes
  TextWriter& printable(std::string_view part);    // printable(part)

  std::uint64_t size() const { return size_; }  // bytes written or counted

 private:
  std::string* text_ = nullptr;
  std::uint64_t size_ = 0;
};

// Whether `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

// The largest position up to `n` at which a cut splits no UTF-8 character. Returns `n` when the
// bytes before it are not UTF-8, and text.size() when `n` is larger.
std::size_t utf8_floor(std::string_view text, std::size_t n);

// The order in which people count: digits compare as numbers, so "layers.2" is less than
// "layers.10". Texts that differ only in leading zeros compare bytewise: only equal texts are
// equal.
std::strong_ordering natural_order(std::string_view a, std::string_view b);

// Appends a text that compares bytewise as `text` does in the natural order. Texts that differ only
// in leading zeros have equal keys.
void append_natural_key(std::string& keys, std::string_view text);

// A to Z become a to z; all else stays.
std::string lower_case(std::string_view text);

// Two digits a byte, in lower case.
std::string hex(std::string_view bytes);

// The insertions, deletions and replacements of bytes that turn one text into the other; `most` + 1
// when more than `most` are needed.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most);

// Numbers as JSON without spaces: "[4096,4096]", "[]".
void write_shape(std::span<const std::uint64_t> shape, TextWriter& out);
std::string shape_json(std::span<const std::uint64_t> shape);

// 1536 -> "1.5 KiB", 17 -> "17 B".
std::string human_bytes(std::uint64_t bytes);

// A time since the epoch in UTC as RFC 3339 writes it: "2026-01-31T08:00:00.000000000Z". Returns
// "@SECONDS" for a year outside 0 to 9999.
std::string rfc3339(std::int64_t seconds, std::int64_t nanoseconds);

}  // namespace stfs
