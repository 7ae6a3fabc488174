// How this program was built, for its --version.
//
// Thread safety: all functions.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

// Two lines: "stfs 0.2.0", and "built with GCC 12.2.0, libcurl 7.88.1, OpenSSL 3.0.22"; a build to
// carry begins the second one with "carried, ". `libraries` stand before libcurl, as "libfuse
// 3.14.0"; "" for none.
std::string version_text(std::string_view program, std::string_view libraries = "");

}  // namespace stfs
