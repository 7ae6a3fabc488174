// Computes the SHA-256 of a recipe's bytes, and writes the line that sha256sum(1) prints.
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
// `stop` was set, ESTALE if a source has changed, or the errno of a read. `hex` is valid only if
// the function returns 0.
int sha256(const Content& content, const std::atomic<bool>& stop, std::string& hex,
           const Progress& progress = {});

// Compares all bytes of a source with the SHA-256 that its server has published. Returns 0 if they
// agree or if no digest was published, or the error of sha256(). If they differ, it returns ESTALE,
// calls Source::refuse(), and sets `why` to a printable clause that says what to remove.
int check_published(const Source& source, const std::atomic<bool>& stop, std::string& why,
                    const Progress& progress = {});

// Returns the line "DIGEST  NAME\n" for sha256sum -c. If the name contains backslashes or line
// ends, escapes them and begins the line with a backslash, like sha256sum(1).
std::string sha256sum_line(std::string_view hex, std::string_view name);

}  // namespace stfs
