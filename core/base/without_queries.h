// Removes the secrets of URLs from texts that users typed. Error and in_quotes() use it, so that no
// message shows a secret.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

// Returns `text` with its URLs shortened: without a user and password before the host, and without
// everything from "?" or "#" on. In s3:// and hf:// names "?" and "#" belong to the name and stay,
// as does an "@" in an hf:// name. In a word that is not a URL, and in an s3:// or hf:// name, the
// part from "?" on is removed if it contains a signature or a token.
std::string without_queries(std::string_view text);

}  // namespace stfs
