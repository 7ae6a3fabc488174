// Models on the Hub: hf://[models/]org/name[@revision][/path].
//
// A revision is a branch, a tag or a commit, percent-encoded where it holds a slash;
// @refs/pr/N and @refs/convert/NAME may stand as they are. A path stands as it is, never encoded.
//
// One request tells the commit of a revision, and of each file its size and SHA-256
// (/api/models/ID/revision/REV?blobs=true). So find() of a file asks nothing more, and the version
// is pinned by commit and SHA-256. Files that the repository holds itself, without Git LFS, have no
// SHA-256: their commit and git's SHA-1 pin them.
//
// The bytes come from /ID/resolve/COMMIT/FILE. For a file of Git LFS or Xet it redirects to a
// signed URL of another host, and tells commit, SHA-256 and size of what lies there:
//
//   none ──resolve, and all three fit──► kept ──400, 401, 403, 404, 410──► none
//
// A small file is answered by /resolve/ itself, or below a path of the same host.
//
// The token goes to the origin of HF_ENDPOINT alone, over https or to a loopback address.
//
// A file of the Hub's own cache takes the place of its object (hub_cache.h).
#pragma once

#include "core/remote/stores/remote.h"

#include <memory>
#include <string>

namespace stfs {

// `http` outlives the store, and the store its Remotes. Options from the environment: HF_ENDPOINT,
// HF_TOKEN and the files that hold one. Throws Error kUsage for an option that breaks its rule, so
// make the store when the first name of the Hub comes.
std::unique_ptr<Store> make_hub_store(Http& http);

}  // namespace stfs
