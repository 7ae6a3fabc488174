#include "core/remote/cache/cache_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stfs {

CacheFile::CacheFile(const RemoteVersion& version, std::unique_ptr<Remote> remote,
                     std::unique_ptr<CacheEntry> entry, Fetcher& fetcher, std::string_view first,
                     bool has_room)
    : Source(version.name),
      fetcher_(fetcher),
      file_{.source = *this,
            .version = version,
            .remote = std::move(remote),
            .blocks = Blocks(version, std::move(entry), fetcher.counters())} {
  set_version({version.size, version.mtime});
  file_.blocks.keep_first(first, Fetcher::kMemory, has_room);
  fetcher_.add(file_);
}

CacheFile::~CacheFile() { fetcher_.remove(file_); }

bool CacheFile::has(ByteRange range) const {
  return file_.blocks.holds(range) && file_.blocks.is_probably_local(file_.blocks.run_of(range));
}

void CacheFile::want(ByteRange range, Ready ready) const {
  if (!file_.blocks.holds(range)) return ready(EINVAL);
  if (file_.blocks.look(file_.blocks.run_of(range))) return ready(0);
  if (has_changed()) return ready(ESTALE);
  fetcher_.want(file_, range, std::move(ready));
}

void CacheFile::prefetch(ByteRange range) const {
  if (range.offset >= size() || has_changed()) return;
  range.length = std::min(range.length, size() - range.offset);
  fetcher_.prefetch(file_, range);
}

}  // namespace stfs
