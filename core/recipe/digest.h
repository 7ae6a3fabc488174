// SHA-256 of a recipe's bytes, and the line that sha256sum(1) prints of a file.
#pragma once

#include "core/recipe/content.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stfs {

// Told how many more bytes were looked at.
using Progress = std::function<void(std::uint64_t bytes)>;

// Fills `hex` with 64 lower-case digits. 0; EINTR as soon as `stop` is set; or the errno of a read.
int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress = {});

// "DIGEST  NAME\n", as sha256sum prints it and reads it with -c: a name with a backslash or a line
// end in it is escaped, and the line then begins with a backslash.
std::string sha256sum_line(std::string_view hex, std::string_view name);

}  // namespace stfs
