// The formats that stfs reads, each a row of one table.
#pragma once

#include "core/format/header.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

struct Format {
  std::string_view name;
  // Whether a file is of this format, by its first bytes (kFirstBytes, or all of a shorter file).
  bool (*recognises)(std::span<const std::byte> first);
  // Reads and validates the header. `place` begins the messages. Throws Error.
  Header (*read)(const Source& source, const std::string& place);
  std::string_view raw_suffix;  // of the name of the file that shows Header::raw
};

inline constexpr std::size_t kFirstBytes = 8;

// The format of a source. A file that no other format recognises is read as safetensors, which has
// no magic: the error then names the rule of safetensors that it breaks. Throws Error kUnreadable.
const Format& format_of(const Source& source);

}  // namespace stfs
