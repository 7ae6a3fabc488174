// Guesses what a file that was refused is. Most such files are failed downloads or have another
// format.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/error.h"
#include "core/source/source.h"

#include <array>
#include <string>
#include <string_view>

namespace stfs {

// Returns the refusal of a source with a message that also says what the file seems to be and what
// to do about it. `place` begins the message. Reads at most 4 KiB from the beginning and 22 bytes
// from the end of the source. Returns the error unchanged if it is not a broken rule of a format
// (exit status 1), or if the source cannot be read.
Error explained(const Error& refusal, const Source& source, const std::string& place);

// Does the same for the refusal of an index with the text `index`.
Error explained(const Error& refusal, std::string_view index, const std::string& place);

// Suffixes that download programs give to an incomplete file.
inline constexpr std::array<std::string_view, 5> kUnfinishedSuffixes{
    ".incomplete", ".part", ".partial", ".crdownload", ".aria2"};
bool is_unfinished_name(std::string_view name);
// Returns true for a name of one of several pieces that cat(1) joins, such as "m.gguf.part1of2".
bool is_piece_name(std::string_view name);

}  // namespace stfs
