// The lanes of a device between its transfers: their pinned memory takes longer to get than a load
// of some gigabytes takes to copy.
//
// Thread safety: all of it. Lifetime: ends before the device.
#pragma once

#include "tools/gpu/device/device.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace stfs::gpu {

class Lanes {
 public:
  // An idle lane with tiles of this size, or a new one. Idle ones of another size are ended.
  std::unique_ptr<Lane> take(Device& device, std::size_t tile_bytes);

  // Keeps a lane that was drained. A lane that has failed is not given back.
  void give_back(std::unique_ptr<Lane> lane);

 private:
  std::mutex mutex_;
  std::size_t tile_bytes_ = 0;
  std::vector<std::unique_ptr<Lane>> idle_;
};

}  // namespace stfs::gpu
