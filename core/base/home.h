// Finds the home directory, and replaces "~" in paths.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <string>

namespace stfs {

// Returns $HOME if it is an absolute path, else the directory in the password database, or "" if
// there is none.
std::string home_directory();

// Returns `path` with a "~" at its beginning ("~/a", "~") replaced by home_directory(). Returns
// other paths unchanged, and also if there is no home directory. stfs does this itself because a
// shell does not expand "~" after "-o cache_dir=", and an environment file never does.
std::string with_home(const std::string& path);

}  // namespace stfs
