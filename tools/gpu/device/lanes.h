// Keeps the lanes of a device between its transfers, because allocating their pinned memory takes
// longer than copying some gigabytes.
//
// Thread safety: all members may be called from any thread. Lifetime: the device must outlive it.
#pragma once

#include "tools/gpu/device/device.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace stfs::gpu {

class Lanes {
 public:
  // Returns an idle lane with tiles of this size in bytes, or a new one. Destroys idle lanes of
  // another size.
  std::unique_ptr<Lane> take(Device& device, std::size_t tile_bytes);

  // Keeps a drained lane. Do not give back a lane that has failed.
  void give_back(std::unique_ptr<Lane> lane);

 private:
  std::mutex mutex_;
  std::size_t tile_bytes_ = 0;
  std::vector<std::unique_ptr<Lane>> idle_;
};

}  // namespace stfs::gpu
