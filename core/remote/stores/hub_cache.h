// Reads the cache of the Hub's own client. A model in this cache has a file refs/REVISION, which
// contains a commit, and links snapshots/COMMIT/PATH to files blobs/ETAG. stfs reads a file of a
// snapshot instead of the object if only this user and root can change the file.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/posix.h"
#include "core/remote/stores/hub_name.h"
#include "core/source/local_file.h"

#include <optional>
#include <string>

namespace stfs {

// Returns the commit in refs/REVISION, or "" if there is no such file. Throws Error kUnreadable if
// another user can change the file.
std::string hub_cached_commit(const HubName& name);

// Returns the path of the cached file of an object, or "" if there is no such file. `name` must
// have a commit. Never throws Error.
std::string hub_local_copy(const std::string& name);

struct HubCacheFile {
  std::string path;  // absolute, without symbolic links
  UniqueFd fd;
};
// Opens a regular file of the cache. Follows symbolic links inside the cache. Throws Error
// kUnreadable if a link points out of the cache, or if a user other than this user and root can
// write to the file or to a directory of the cache on the path to it.
HubCacheFile open_in_hub_cache(const std::string& path);

// Returns the facts about the object that the path of an opened copy contains, if the path is
// blobs/ETAG and ETAG is a digest. Returns nullopt for any other path. `name` must have a commit.
std::optional<LocalFile::Object> hub_copy_object(const std::string& name, const std::string& path);

}  // namespace stfs
