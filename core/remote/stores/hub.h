// Models on the Hub: hf://[models/]org/name[@revision][/path].
//
// A revision is a branch, a tag or a commit. Slashes in it are percent-encoded, except in
// @refs/pr/N and @refs/convert/NAME. A path is never encoded.
//
// One request (/api/models/ID/revision/REV?blobs=true) returns the commit of a revision and the
// size and SHA-256 of each file. So find() of a file sends no further request, and the version is
// pinned by commit and SHA-256. Files that are stored in the repository itself, without Git LFS,
// have no SHA-256; their commit and git's SHA-1 pin the version.
//
// The bytes are fetched from /ID/resolve/COMMIT/FILE. For a file in Git LFS or Xet, this URL
// redirects to a signed URL on another host, and its response has the commit, SHA-256 and size of
// the file. If all three are as expected, the signed URL is kept for later requests, until the
// other host refuses it:
//
//   none ──resolve, and all three fit──► kept ──400, 401, 403, 404, 410──► none
//
// For a small file, /resolve/ returns the bytes itself or redirects to a path of the same host.
//
// The token is sent only to the origin of HF_ENDPOINT, and only over https or to a loopback
// address.
//
// If the Hub's own cache has a file, it is read instead of the object (hub_cache.h).
//
// Thread safety: the members of the store and of its Remotes may be called from any thread.
#pragma once

#include "core/remote/stores/remote.h"

#include <memory>
#include <string>

namespace stfs {

// Returns the store. `http` must outlive the store, and the store must outlive its Remotes. Reads
// its options from the environment: HF_ENDPOINT, HF_TOKEN and the files that contain a token.
// Throws Error kUsage if an option is not valid, so make the store only when the first name of the
// Hub is used.
std::unique_ptr<Store> make_hub_store(Http& http);

}  // namespace stfs
