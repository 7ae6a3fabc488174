// Copies items into device memory.
//
//   lay_out   assigns to each item a position in a segment
//   transfer  copies the items into device memory, tile by tile, with several workers
//
// A worker takes the next tile, reads its bytes from the source into the staging tile of its lane,
// sends it, and takes another tile while the device copies. It never reads from a mapping or
// through a mount; the bytes of a remote source come through the cache as they arrive. Small
// tensors share a segment, so they share tiles.
//
// Thread safety: the functions have no shared state. Other threads may use `device` at the same
// time.
#pragma once

#include "core/remote/sources.h"
#include "tools/gpu/copier/open_sources.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/lanes.h"
#include "tools/gpu/device/narrowing.h"
#include "tools/gpu/protocol/item.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace stfs::gpu {

// The position of an item in device memory. The offset is a multiple of kItemAlignment. An item
// without bytes has no segment.
struct Placement {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t segment = kNone;
  std::uint64_t offset = 0;  // bytes
};

inline constexpr std::uint64_t kItemAlignment = 512;  // bytes; cudaMalloc aligns to 256

struct Layout {
  std::vector<std::uint64_t> segment_bytes;  // multiples of kSegmentGranularity
  std::vector<Placement> placements;         // one per item, in item order

  std::uint64_t bytes() const;  // the size of all segments; UINT64_MAX on overflow
};

// Packs items of these sizes in bytes into segments, in order. An item of kOwnSegment bytes or more
// gets its own segment. The others share segments of that size, so that evicting a few items frees
// memory.
inline constexpr std::uint64_t kOwnSegment = 32 << 20;
Layout lay_out(std::span<const std::uint64_t> item_bytes);

// Returns the sum of two sizes, or UINT64_MAX on overflow.
std::uint64_t sum_or_most(std::uint64_t a, std::uint64_t b);

struct TransferOptions {
  unsigned workers = 0;              // 0: Device::default_workers()
  std::size_t tile_bytes = 4 << 20;  // larger tiles do not fit the processor's cache
  bool verify = false;               // read back and compare with the source
  std::uint64_t keep_free = 0;       // bytes of device memory to leave free
  // How long to retry if there is too little memory. The memory of a process that was killed, and
  // memory that the holder evicts, becomes free a moment later.
  std::chrono::milliseconds wait_for_room{0};
  Lanes* lanes = nullptr;  // kept for the next transfer; null: the transfer has its own
  // transfer() throws after this has become true, and sets it if a worker fails.
  std::atomic<bool>* stop = nullptr;
  Sources* sources = nullptr;  // opens the source files; null: the transfer has its own
  // The checkpoints of the last transfer with the same `sources`; null: the transfer has its own.
  OpenCheckpoints* checkpoints = nullptr;
  // Called after each tile with the number of bytes of items that were copied or compared. Must be
  // thread-safe.
  std::function<void(std::uint64_t bytes)> progress = {};
};

struct Transferred {
  std::vector<UniqueFd> segments;        // one descriptor per segment, as in Layout
  std::vector<ConversionCounts> counts;  // one per item
  std::string note;                      // one line about slow work; "" without any
};

// Returns the sum of the bytes of all `progress` calls of a transfer, or UINT64_MAX on overflow.
std::uint64_t work_of(std::span<const Item> items, const TransferOptions& options);

// The usual value of wait_for_room.
inline constexpr std::chrono::seconds kRoomTime{2};

// Calls open_device(), and retries for `wait` while memory for a context is missing. Throws Error
// kDeviceFailed after `stop`, which may be null, has become true.
std::unique_ptr<Device> open_with_room(const DeviceInfo& info, std::chrono::milliseconds wait,
                                       const std::atomic<bool>* stop = nullptr);

// Opens the source files and copies the items as they were laid out. Throws Error kUnreadable if a
// source does not have the version that its items name, before or after the copy; kDeviceFailed;
// OutOfDeviceMemory; and kUsage if an option is out of range. On any error it waits for the copies
// in flight, then frees all device memory.
Transferred transfer(Device& device, std::span<const Item> items, const Layout& layout,
                     const TransferOptions& options);

}  // namespace stfs::gpu
