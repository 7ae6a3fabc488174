// Text that leaves the program: for terminals, for JSON, for tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stfs {

// `text` with every control character (C0, DEL, C1), the Unicode marks that reorder or hide what
// follows them, and every byte that is not UTF-8 written as an escape (`\n`, `\x1b`, `\u202e`), so
// that a name from a file cannot reach a terminal as a command. A backslash is doubled.
std::string printable(std::string_view text);

// printable(text) in double quotes, with `"` escaped; over 200 bytes the middle is left out.
std::string in_quotes(std::string_view text);

// `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// Writes a text piece by piece, or only counts its bytes: one function then tells both a text and
// its size.
class TextWriter {
 public:
  TextWriter() = default;  // counts
  explicit TextWriter(std::string& text) : text_(&text) {}

  TextWriter& add(std::string_view part);
  TextWriter& number(std::uint64_t value);
  TextWriter& json(std::string_view part);       // json_string(part)
  TextWriter& printable(std::string_view part);  // printable(part)

  std::uint64_t size() const { return size_; }  // bytes so far

 private:
  std::string* text_ = nullptr;
  std::uint64_t size_ = 0;
};

// True when `text` is well-formed UTF-8 as RFC 3629 says (no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

// The largest n' <= n at which `text` can be cut without splitting a UTF-8 character; n where there
// is none in the text.
std::size_t utf8_floor(std::string_view text, std::size_t n);

// 1536 -> "1.5 KiB". Exact bytes below 1 KiB.
std::string human_bytes(std::uint64_t bytes);

// Seconds and nanoseconds since the epoch as RFC 3339 in UTC, "2026-01-31T08:00:00.000000000Z".
// "@SECONDS" for a year that it cannot write.
std::string rfc3339(std::int64_t seconds, std::int64_t nanoseconds);

}  // namespace stfs
