#include "tools/gpu/device/lanes.h"

#include <utility>

namespace stfs::gpu {

std::unique_ptr<Lane> Lanes::take(Device& device, std::size_t tile_bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (tile_bytes != std::exchange(tile_bytes_, tile_bytes)) idle_.clear();
    if (!idle_.empty()) {
      std::unique_ptr<Lane> lane = std::move(idle_.back());
      idle_.pop_back();
      return lane;
    }
  }
  return device.lane(tile_bytes);
}

void Lanes::give_back(std::unique_ptr<Lane> lane) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(lane));
}

}  // namespace stfs::gpu
