// The file formats that stfs reads: a table with one row a format.
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
  // Whether a file that begins with these bytes is of this format. Gets kFirstBytes bytes, or all
  // of a shorter file.
  bool (*recognises)(std::span<const std::byte> first);
  // Reads and validates the header of a source. `place` begins the messages of errors; what does
  // not stand at the beginning is read by `read`. Throws Error: kUnreadable, or the rule of the
  // format that the header breaks.
  Header (*read)(const Source& source, const std::string& place, const ReadBytes& read);
  // The bytes of the header, as far as the first ones tell. Checks nothing.
  std::uint64_t (*header_length)(std::span<const std::byte> first);
  std::string_view raw_suffix;  // of the mount's file that shows Header::raw: ".json", ".gguf"
  std::uint64_t at_end = 0;     // bytes at the end of the file that are read as well
};

// The rows that tell a format: they have the name of an archive's first member.
inline constexpr std::size_t kFirstBytes = 512;

// Reads the first bytes of a source and returns its format. No file is two of them: as a length,
// GGUF's magic number is over safetensors' limit, and is_zip() looks at that too. safetensors has
// no magic number, so any other file counts as safetensors, and reading its header reports the
// broken rule. Throws Error kUnreadable.
const Format& format_of(const Source& source);

// Lets a source that fetches begin to fetch its header, if the first bytes are here.
void prefetch_header(const Source& source);

}  // namespace stfs
