// Describes how this program was built, for its --version.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

// Returns two lines: "stfs 0.2.0", and "built with GCC 12.2.0, libcurl 7.88.1, OpenSSL 3.0.22". If
// kIsCarried (carried.h), the second line begins with "carried, ". `libraries` are other libraries,
// which come before libcurl, such as "libfuse 3.14.0", or "" if there are none.
std::string version_text(std::string_view program, std::string_view libraries = "");

}  // namespace stfs
