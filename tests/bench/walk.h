// nlohmann's SAX parser over a header, and nothing done with what it says: the least that a reader
// built on it can take.
#pragma once

#include <string_view>

namespace stfs::bench {

// Whether `text` is JSON.
bool walk(std::string_view text);

}  // namespace stfs::bench
