// Texts that users typed, without the secrets of the URLs in them. Error and in_quotes() show none.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

// Returns `text` without a user and password before a host, and without all from "?" or "#" on, of
// URLs of http, https and unknown schemes. A "?" in a name of S3 belongs to the key. A text that is
// no URL loses all from "?" on if a signature or a token follows in the same word.
std::string without_queries(std::string_view text);

}  // namespace stfs
