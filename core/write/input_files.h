// The files that a command reads, so that no output takes the place of one of them.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"

#include <sys/stat.h>

#include <string>

namespace stfs {

// Whether a path leads to the file with this status.
bool leads_to(const std::string& path, const struct stat& file);

// Whether `path`, which leads to `file`, is a file that `sources` have read, one that a mount shows
// in such a file (merged.safetensors), or one of their cache.
bool is_read(const struct stat& file, const std::string& path, const Sources& sources);

}  // namespace stfs
