#include "core/remote/cache/cache_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stfs {

CacheFile::CacheFile(RemoteVersion version, std::unique_ptr<Remote> remote,
                     std::unique_ptr<CacheEntry> entry, Fetcher& fetcher, std::string_view first,
                     bool has_room)
    : Source(version.name),
      remote_version_(std::move(version)),
      remote_(std::move(remote)),
      blocks_(remote_version_, std::move(entry), fetcher.counters()),
      fetcher_(fetcher) {
  set_version({remote_version_.size, remote_version_.mtime});
  blocks_.keep_first(first, Fetcher::kMemory, has_room);
  file_ = fetcher_.add(*this, remote_version_, *remote_, blocks_);
}

CacheFile::~CacheFile() { fetcher_.remove(*file_); }

bool CacheFile::has(ByteRange range) const {
  return blocks_.holds(range) && blocks_.may_have(blocks_.run_of(range));
}

void CacheFile::want(ByteRange range, Ready ready) const {
  if (!blocks_.holds(range)) return ready(EINVAL);
  if (blocks_.look(blocks_.run_of(range))) return ready(0);
  if (has_changed()) return ready(ESTALE);
  fetcher_.want(file_, range, std::move(ready));
}

void CacheFile::prefetch(ByteRange range) const {
  if (range.offset >= size() || has_changed()) return;
  range.length = std::min(range.length, size() - range.offset);
  fetcher_.prefetch(file_, range);
}

bool CacheFile::is_complete() const { return blocks_.is_complete(); }

int CacheFile::read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const {
  return blocks_.read(buffer, offset);
}

int CacheFile::read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const {
  return read_unverified(buffer, offset);
}

bool CacheFile::is_current() const { return !has_changed(); }

}  // namespace stfs
