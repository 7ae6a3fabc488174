// Objects of any web server that answers ranges.
//
// find() is one request of Source::kFetchUnit bytes from the beginning of the object, which
// replaces HEAD: the answer tells size and validators, and the bytes are the header's first. With a
// version that the cache has, the request says If-None-Match, and 304 answers it without bytes.
//
// A web server has no directories: list() gives nullopt.
#pragma once

#include "core/remote/stores/remote.h"

#include <memory>

namespace stfs {

// `http` outlives the store, and the store its Remotes.
std::unique_ptr<Store> make_web_store(Http& http);

}  // namespace stfs
