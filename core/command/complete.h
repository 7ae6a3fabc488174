// Finds the candidates for the word of a command line that a shell completes. The scripts in
// docs/completions call each program to get them.
//
// Thread safety: only the main thread may call this, in a process that does nothing else.
#pragma once

#include "core/command/command.h"

#include <span>
#include <string>
#include <string_view>

namespace stfs {

// A command line that asks for candidates begins with this word.
inline constexpr std::string_view kCompleteWord = "--complete";

// Prints the candidates for the last of `words`. The words are those after the program's name, as
// the shell understands them, without quotes. Each printed record ends with a NUL byte: the kind of
// the word ("verb", "tensor", "path"), the beginning of the word that candidates leave out
// ("--sort="), and then a candidate and its description in turn. A candidate ends with a space if
// the word is complete with it. Prints nothing on any error. Returns 0. A signal ends the process
// after three seconds, because a source may be slow.
int complete(const CommandRow& command, std::span<const std::string> words);

}  // namespace stfs
