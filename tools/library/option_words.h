// Options of the library: words like those of `stfs -o`, one in each string.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/command/command.h"

#include <span>
#include <string>

namespace stfs {

// A path that stays true when the working directory changes.
std::string absolute(const std::string& path);

// The words of rows, for messages: "a, b".
std::string words_of(std::span<const OptionRow> rows);

// Sets what `option`, "key=value" or "key", means after its row; `to` is the argument of the rows'
// setters. Returns the option as it was set: a path is absolute. Throws Error kUsage; `known` are
// all words, for the message.
std::string set_option(std::span<const OptionRow> rows, const std::string& option,
                       const std::string& known, void* to);

}  // namespace stfs
