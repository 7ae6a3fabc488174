// Models on the Hub: hf://[models/]org/name[@revision][/path].
//
// One request tells the commit of a revision, and of each file its size and SHA-256
// (/api/models/ID/revision/REV?blobs=true). So find() of a file asks nothing more, and the version
// is pinned by commit and SHA-256. The bytes come from /ID/resolve/COMMIT/FILE, which redirects to
// a signed URL of another host: it is kept until it is refused.
//
// What lies complete in the Hub's own cache is used from there: local_copy().
#pragma once

#include "core/source/remote.h"

#include <memory>
#include <string>

namespace stfs {

// `http` outlives the store, and the store its Remotes. Options from the environment: HF_ENDPOINT,
// HF_TOKEN and the files that hold one.
std::unique_ptr<Store> make_hub_store(Http& http);

// The file of the Hub's own cache that holds an object completely ("" when there is none). A name
// without a commit means what refs/REVISION of that cache says. Asks nobody.
std::string hub_local_copy(const std::string& name);

}  // namespace stfs
