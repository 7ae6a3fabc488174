#include "core/recipe/tile_cache.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stfs {

void TileCache::Buffers::Free::operator()(std::byte* bytes) const {
  ::operator delete[](bytes, std::align_val_t{kAlignment});
}

TileCache::Buffers::Buffer TileCache::Buffers::take(std::size_t size) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(spare_, size, &std::pair<std::size_t, Buffer>::first);
    if (found != spare_.end()) {
      Buffer buffer = std::move(found->second);
      spare_.erase(found);
      return buffer;
    }
  }
  return Buffer(static_cast<std::byte*>(::operator new[](size, std::align_val_t{kAlignment})));
}

void TileCache::Buffers::give(std::size_t size, Buffer buffer) {
  const std::lock_guard lock(mutex_);
  if (spare_.size() == kMaxSpare) spare_.erase(spare_.begin());
  spare_.emplace_back(size, std::move(buffer));
}

std::shared_ptr<TileCache::Tile> TileCache::get(const Key& key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return found->second->tile;
  }
  while (bytes_ + bytes > kMost && !kept_.empty()) {
    bytes_ -= kept_.back().tile->size;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
  auto tile = std::make_shared<Tile>(buffers_, bytes);
  const auto row = by_key_.emplace(key, kept_.end()).first;
  try {
    kept_.push_front({key, std::move(tile)});
  } catch (...) {
    by_key_.erase(row);
    throw;
  }
  row->second = kept_.begin();
  bytes_ += bytes;
  return kept_.front().tile;
}

bool TileCache::has(const Key& key) const {
  std::shared_ptr<Tile> tile;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return false;
    tile = found->second->tile;
  }
  const std::unique_lock lock(tile->mutex, std::try_to_lock);
  return !lock || tile->is_ready;
}

}  // namespace stfs
