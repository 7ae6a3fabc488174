// One value of a checkpoint's metadata as text: a string as it is, a number in decimal, an array as
// JSON. Texts of arrays and of long strings are not in memory: they are made from the source when
// they are read.
//
// Thread safety: the functions and the const members may be called from any thread. Lifetime: the
// sources outlive everything here.
#pragma once

#include "core/base/text.h"
#include "core/format/header.h"
#include "core/recipe/content.h"
#include "core/source/source.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The JSON of an array: its text is a list of steps, each of at most kStep encoded bytes. A step is
// whole elements, or a part of a long string. An array of a million strings has a hundred steps.
class ArrayText {
 public:
  static constexpr std::uint64_t kStep = 64 << 10;  // bytes

  ArrayText(const Source& source, const MetadataValue& value) : source_(source), value_(value) {}

  // Reads the array once, to find the steps. Waits for a source that fetches. Returns 0 or an
  // errno; the next call then tries again.
  int prepare() const;

  // Needs prepare().
  std::uint64_t size() const { return size_; }  // bytes of the text
  int produce(std::uint64_t offset, std::span<std::byte> out) const;
  void missing(std::uint64_t offset, std::uint64_t length, std::vector<Extent>& missing) const;
  int verify() const { return source_.verify(); }

 private:
  struct Step {
    std::uint64_t at;    // in the source, bytes
    std::uint64_t text;  // in the text, bytes
    std::uint64_t left;  // of a string that the step before began, bytes; else 0
  };
  using Read = int (Source::*)(std::span<std::byte>, std::uint64_t) const;

  std::uint64_t begin() const;  // of the elements in the source
  std::uint64_t end() const { return value_.encoded.offset + value_.encoded.length; }
  int write(Step& step, Read read, TextWriter& out) const;
  bool write_element(std::string_view& bytes, Step& step, TextWriter& out) const;
  bool begin_string(std::string_view& bytes, Step& step, TextWriter& out) const;
  std::vector<Step>::const_iterator step_at(std::uint64_t offset) const;

  const Source& source_;
  const MetadataValue value_;
  mutable std::mutex mutex_;  // of the rest, until is_prepared_
  mutable bool is_prepared_ = false;
  mutable std::vector<Step> steps_;
  mutable std::uint64_t size_ = 0;
};

// A key of the metadata and its value.
struct MetadataItem {
  std::string_view key;
  std::string_view text;  // as in Metadata::Entry; "" unless value.has_text
  MetadataValue value;
  const Source* source;              // has the bytes value.encoded
  const ArrayText* array = nullptr;  // of an array for which it is kept
};

// The size of the text in bytes, and its recipe. Return 0 or an errno of the source. They wait for
// no network: of a source that fetches, `array` is kept and prepared.
int text_size(const MetadataItem& item, std::uint64_t& bytes);
int make_text(const MetadataItem& item, Content& content);

// Writes the value as JSON: a string, a number or a bool. An array is
// {"array": "string", "length": 32000}, and a string that is not in memory {"string": BYTES}.
void write_value_json(const MetadataItem& item, TextWriter& out);
// For a table: the text, or "[32000 string]".
std::string shown_value(const MetadataItem& item);

// Whether two values have the same type and the same bytes. Throws Error kUnreadable.
bool are_equal(const MetadataItem& a, const MetadataItem& b);

}  // namespace stfs
