// A value of a checkpoint's metadata as text: a string unchanged, a number in decimal, an array as
// JSON. The texts of arrays and of long strings are not kept in memory. They are made from the
// source when they are read.
//
// Thread safety: the functions and the const members may be called from any thread. Lifetime: the
// sources must outlive all objects of this file.
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

// The text of an array as JSON. It is divided into steps, so that a read need not begin at the
// first element. A step consists of whole elements or of a part of a long string, and has at most
// kStep encoded bytes. An array of a million strings has about a hundred steps.
class ArrayText {
 public:
  static constexpr std::uint64_t kStep = 64 << 10;  // bytes

  ArrayText(const Source& source, const MetadataValue& value) : source_(source), value_(value) {}

  // Reads the array to find the steps, unless an earlier call has succeeded. If the source is
  // remote, waits until the bytes are fetched. Returns 0 or an errno.
  int prepare() const;

  // Call these only after prepare() has returned 0. They are like the members of Producer.
  std::uint64_t size() const { return size_; }  // bytes of the text
  int produce(std::uint64_t offset, std::span<std::byte> out) const;
  void missing(std::uint64_t offset, std::uint64_t length, std::vector<Extent>& missing) const;
  int verify() const { return source_.verify(); }

 private:
  struct Step {
    std::uint64_t at;    // offset in the source, bytes
    std::uint64_t text;  // offset in the text, bytes
    std::uint64_t left;  // bytes left of a string that an earlier step began, or 0
  };
  using Read = int (Source::*)(std::span<std::byte>, std::uint64_t) const;

  std::uint64_t begin() const;  // offset of the first element in the source
  std::uint64_t end() const { return value_.encoded.offset + value_.encoded.length; }
  int write(Step& step, Read read, TextWriter& out) const;
  bool write_element(std::string_view& bytes, Step& step, TextWriter& out) const;
  bool begin_string(std::string_view& bytes, Step& step, TextWriter& out) const;
  std::vector<Step>::const_iterator step_at(std::uint64_t offset) const;

  const Source& source_;
  const MetadataValue value_;
  mutable std::mutex mutex_;  // guards the members below until is_prepared_ is set
  mutable bool is_prepared_ = false;
  mutable std::vector<Step> steps_;
  mutable std::uint64_t size_ = 0;
};

// A key of the metadata and its value.
struct MetadataItem {
  std::string_view key;
  std::string_view text;  // the text of Metadata::Entry; "" unless value.has_text
  MetadataValue value;
  const Source* source;  // contains the bytes value.encoded
  // The checkpoint's ArrayText of an array, if it keeps one. The checkpoint keeps and prepares one
  // for every array of a remote source.
  const ArrayText* array = nullptr;
};

// Sets `bytes` to the size of the text, or `content` to its recipe. Return 0 or an errno of the
// source. They never wait for the network, because `array` is prepared if the source is remote.
int text_size(const MetadataItem& item, std::uint64_t& bytes);
int make_text(const MetadataItem& item, Content& content);

// Writes the value as JSON. An array becomes {"array": "string", "length": 32000}, and a string
// that is not in memory becomes {"string": BYTES}.
void write_value_json(const MetadataItem& item, TextWriter& out);
// Returns the text for a table, or "[32000 string]" for an array, or "[1.0 MiB]" for a string that
// is not in memory.
std::string shown_value(const MetadataItem& item);

// Returns true if two values have the same type and the same bytes. Reads bytes that are not in
// memory. Throws Error kUnreadable.
bool are_equal(const MetadataItem& a, const MetadataItem& b);

}  // namespace stfs
