// Runs nlohmann's SAX parser over a header and ignores its events. This is a lower bound for any
// reader that uses the parser.
#pragma once

#include <string_view>

namespace stfs::bench {

// Returns true if `text` is JSON.
bool walk(std::string_view text);

}  // namespace stfs::bench
