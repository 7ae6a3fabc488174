// Tells what a file that was refused seems to be. Most files that are no checkpoint are a failed
// download or a file of another format.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/error.h"
#include "core/source/source.h"

#include <array>
#include <string>
#include <string_view>

namespace stfs {

// The refusal of a source, with what the file seems to be and what to do about it. Reads at most
// 4 KiB. `place` begins the message. An error that is no broken rule of the format stays as it is.
Error explained(const Error& refusal, const Source& source, const std::string& place);

// The refusal of an index, explained in the same way from its text.
Error explained(const Error& refusal, std::string_view index, const std::string& place);

// Suffixes that download programs give to an incomplete file.
inline constexpr std::array<std::string_view, 5> kUnfinishedSuffixes{
    ".incomplete", ".part", ".partial", ".crdownload", ".aria2"};
bool is_unfinished_name(std::string_view name);
// Whether a name is that of a piece that cat joins with others: "m.gguf.part1of2".
bool is_piece_name(std::string_view name);

}  // namespace stfs
