#include "core/recipe/tile_cache.h"

namespace stfs {

std::shared_ptr<TileCache::Tile> TileCache::get(const Key& key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return found->second->tile;
  }
  kept_.push_front({key, std::make_shared<Tile>(), bytes});
  by_key_[key] = kept_.begin();
  bytes_ += bytes;
  while (bytes_ > kMost && kept_.size() > 1) {
    bytes_ -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
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
