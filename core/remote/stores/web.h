// Objects on any web server that supports range requests.
//
// find() is one request for the first Source::kFetchUnit bytes of the object. It replaces a HEAD
// request: the response contains size and validators, and its bytes are the ones that loading reads
// first. If the cache has a version with a strong ETag, the request has If-None-Match, and the
// server may return 304 without bytes.
//
// A web server has no directories, so list() returns nullopt.
#pragma once

#include "core/remote/stores/remote.h"

#include <memory>

namespace stfs {

// `http` must outlive the store, and the store must outlive its Remotes.
std::unique_ptr<Store> make_web_store(Http& http);

}  // namespace stfs
