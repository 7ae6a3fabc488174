// The cache of the Hub's own client. A model there has refs/REVISION, which holds a commit, and
// snapshots/COMMIT/PATH, which is a link to blobs/ETAG. A file of a snapshot takes the place of its
// object if only this user and root can change it.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/posix.h"
#include "core/remote/stores/hub_name.h"
#include "core/source/local_file.h"

#include <optional>
#include <string>

namespace stfs {

// Returns the commit that refs/REVISION holds; "" if there is none. Throws Error kUnreadable if
// another user can change it.
std::string hub_cached_commit(const HubName& name);

// Returns the path of the file that stands for an object; "" if there is none. `name` has a commit.
// Never throws Error.
std::string hub_local_copy(const std::string& name);

struct HubCacheFile {
  std::string path;  // absolute, without symbolic links
  UniqueFd fd;
};
// Opens a regular file of the cache, and follows symbolic links inside of the cache. Throws Error
// kUnreadable if a link leads out of the cache, or if a user other than this one and root can write
// to the file or to a directory of the cache that leads to it.
HubCacheFile open_in_hub_cache(const std::string& path);

// Returns what the path of an opened copy shows of its object, if it is blobs/ETAG and ETAG is a
// digest; else nullopt. `name` has a commit.
std::optional<LocalFile::Object> hub_copy_object(const std::string& name, const std::string& path);

}  // namespace stfs
