// Recognises the files that a command reads, so that an output does not overwrite one of them.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"

#include <sys/stat.h>

#include <string>

namespace stfs {

// Returns true if a path refers to the file with this status, also through symbolic links.
bool leads_to(const std::string& path, const struct stat& file);

// Returns true if `path`, which refers to `file`, must not be overwritten: because `sources` have
// read this file, because they have read a file of a mount that shows it (merged.safetensors), or
// because it is in the cache of `sources`.
bool is_read(const struct stat& file, const std::string& path, const Sources& sources);

}  // namespace stfs
