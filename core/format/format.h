// The file formats that stfs reads: a table with one row per format.
//
// Thread safety: the functions may be called from any thread. Lifetime: rows are constants.
#pragma once

#include "core/format/header.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kSafetensorsName = "safetensors";

struct Format {
  std::string_view name;
  // Returns true if a file that begins with these bytes has this format. The argument is the first
  // kFirstBytes bytes, or the whole of a shorter file.
  bool (*recognises)(std::span<const std::byte> first);
  // Reads and validates the header of a source. `place` begins the messages of errors. Bytes that
  // are not at the beginning of the source are read with `read`. Throws Error: kUnreadable, or the
  // rule of the format that the header breaks.
  Header (*read)(const Source& source, const std::string& place, const ReadBytes& read);
  // Estimates the length of the header in bytes from the first bytes of the file. Checks nothing.
  std::uint64_t (*header_length)(std::span<const std::byte> first);
  // The ending of the mount's file that shows Header::raw: ".json", ".gguf".
  std::string_view raw_suffix;
  std::uint64_t at_end = 0;  // bytes at the end of the file that are read too
};

// The bytes from which a format is recognised; enough for the name of an archive's first member.
inline constexpr std::size_t kFirstBytes = 512;

// Reads the first bytes of a source and returns its format. No file can have two formats: GGUF's
// magic number, as the length of a header, would be over the limit of safetensors, and is_zip()
// returns false for every safetensors file. Because safetensors has no magic number, any other file
// counts as safetensors, and reading its header reports the broken rule. Throws Error kUnreadable.
const Format& format_of(const Source& source);

// If the source is remote and its first bytes are in the cache, begins to fetch the rest of its
// header, without waiting.
void prefetch_header(const Source& source);

}  // namespace stfs
