// Home directories in paths.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <string>

namespace stfs {

// $HOME if it is absolute, else the directory in the password database; "" if there is none.
std::string home_directory();

// The path with home_directory() in place of "~" at its beginning ("~/a", "~"). A shell does not
// expand it after "-o cache_dir=", and an environment file never does.
std::string with_home(const std::string& path);

}  // namespace stfs
