// Copies items into device memory.
//
//   lay_out   items -> segments: which item lies where
//   transfer  items -> device memory, tile by tile, by several workers
//
// A worker takes the next tile, reads its bytes from the source (never from a mapping or through a
// mount; where the source is elsewhere, through the cache as they arrive) into the staging tile of
// its lane, sends it, and takes another while the device copies. Small tensors share a segment, so
// they share tiles.
//
// Thread safety: functions without shared state. `device` may be used by other threads.
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

// Where an item lies in device memory. The offset is a multiple of kItemAlignment. An item without
// bytes has no segment.
struct Placement {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t segment = kNone;
  std::uint64_t offset = 0;  // bytes
};

inline constexpr std::uint64_t kItemAlignment = 512;  // bytes; cudaMalloc aligns to 256

struct Layout {
  std::vector<std::uint64_t> segment_bytes;  // multiples of kSegmentGranularity
  std::vector<Placement> placements;         // one per item, in item order

  std::uint64_t bytes() const;  // of all segments; UINT64_MAX on overflow
};

// Packs items of these sizes into segments, in order. An item of kOwnSegment bytes or more gets its
// own segment. The others share segments of that size, so that evicting a few items frees memory.
inline constexpr std::uint64_t kOwnSegment = 32 << 20;
Layout lay_out(std::span<const std::uint64_t> item_bytes);

// The sum of two sizes; UINT64_MAX on overflow.
std::uint64_t sum_or_most(std::uint64_t a, std::uint64_t b);

struct TransferOptions {
  unsigned workers = 0;              // 0: Device::default_workers()
  std::size_t tile_bytes = 4 << 20;  // larger tiles do not fit the processor's cache
  bool verify = false;               // read back and compare with the source
  std::uint64_t keep_free = 0;       // bytes of the device to leave free
  // For how long to try again without room: memory of a process that was killed, and what the
  // holder evicts, goes a moment later.
  std::chrono::milliseconds wait_for_room{0};
  Lanes* lanes = nullptr;  // kept for the next transfer; null: its own
  // transfer() throws once this is true, and sets it itself when a worker fails.
  std::atomic<bool>* stop = nullptr;
  Sources* sources = nullptr;  // opens the source files; null: its own
  // Those of the last transfer with the same `sources`; null: its own.
  OpenCheckpoints* checkpoints = nullptr;
  // Called after each tile with the bytes of items copied or compared. Must be thread-safe.
  std::function<void(std::uint64_t bytes)> progress = {};
};

struct Transferred {
  std::vector<UniqueFd> segments;        // one descriptor per segment, as in Layout
  std::vector<ConversionCounts> counts;  // one per item
  std::string note;                      // one line about work that was slow; empty without any
};

// The sum of all `progress` calls of a transfer, bytes; UINT64_MAX on overflow.
std::uint64_t work_of(std::span<const Item> items, const TransferOptions& options);

// A good value of wait_for_room.
inline constexpr std::chrono::seconds kRoomTime{2};

// open_device(), tried again for so long while a context finds no room. Throws kDeviceFailed once
// `stop` is true; null: nothing stops it.
std::unique_ptr<Device> open_with_room(const DeviceInfo& info, std::chrono::milliseconds wait,
                                       const std::atomic<bool>* stop = nullptr);

// Copies the items as laid out. Opens the source files. Throws Error kUnreadable when a source does
// not have the version that its items name, before or after the copy; kDeviceFailed;
// OutOfDeviceMemory; kUsage for options out of range. On any error it first waits for running
// copies, then frees all device memory.
Transferred transfer(Device& device, std::span<const Item> items, const Layout& layout,
                     const TransferOptions& options);

}  // namespace stfs::gpu
