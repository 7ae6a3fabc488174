// The SHA-256 of a recipe's bytes, and the line that sha256sum(1) prints for a file.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/recipe/content.h"
#include "core/values/pass.h"

#include <atomic>
#include <string>
#include <string_view>

namespace stfs {

// Reads all bytes and sets `hex` to their digest, 64 lower-case digits. Returns 0, EINTR soon after
// `stop` was set, ESTALE when a source changed, or the errno of a read. `hex` is valid only with 0.
int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress = {});

// Compares all bytes of a source with the SHA-256 that its server published. Returns 0, also where
// none was published, or what sha256() returns. For other bytes it returns ESTALE, refuses the
// source, and sets `why` to a printable clause that says what to remove.
int check_published(const Source& source, const std::atomic<bool>& stop, std::string& why,
                    const Progress& progress = {});

// "DIGEST  NAME\n", for sha256sum -c. As sha256sum does, escapes backslashes and line ends in the
// name and then begins the line with a backslash.
std::string sha256sum_line(std::string_view hex, std::string_view name);

}  // namespace stfs
