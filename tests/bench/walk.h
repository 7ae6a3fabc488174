// nlohmann's SAX parser over a header, ignoring its events: a lower bound for any reader built on
// it.
#pragma once

#include <string_view>

namespace stfs::bench {

// Returns whether `text` is JSON.
bool walk(std::string_view text);

}  // namespace stfs::bench
