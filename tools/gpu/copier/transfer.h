// Items into device memory: how they are laid out in segments, and the copy.
//
//   plan      items -> segments; each segment is a recipe, as a mounted file is
//   transfer  segments -> device memory, tile by tile, by several workers
//
// A worker claims the next tile of the next segment, reads what stands there into a tile of its
// lane (from the source with pread: never from a mapping, never through a mount), sends it, and
// claims another while the device still copies. Small tensors share a tile because they share a
// segment.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "tools/gpu/copier/item.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/narrowing.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace stfs::gpu {

// Where an item begins: a multiple of kItemAlignment into a segment. An item without bytes has no
// segment.
struct Placement {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t segment = kNone;
  std::uint64_t offset = 0;  // bytes
};

inline constexpr std::uint64_t kItemAlignment = 512;  // bytes; what cudaMalloc gives is 256

struct Layout {
  std::vector<std::uint64_t> segment_bytes;  // multiples of kSegmentGranularity
  std::vector<Placement> placements;         // one an item, in their order

  std::uint64_t bytes() const;  // of all segments; the most that 64 bits hold when it is more
};

// Packs items of these sizes, in their order: one of kOwnSegment bytes or more has a segment to
// itself, the others share segments of that size, so that memory is given back when few items have
// gone.
inline constexpr std::uint64_t kOwnSegment = 32 << 20;
Layout lay_out(std::span<const std::uint64_t> item_bytes);

// The sum of two sizes; the most that 64 bits hold when it is more.
std::uint64_t sum_or_most(std::uint64_t a, std::uint64_t b);

struct TransferOptions {
  unsigned workers = 0;                     // 0: what the device says
  std::size_t tile_bytes = 4 << 20;         // larger ones leave the processor's cache
  bool verify = false;                      // read everything back and compare it with the source
  std::uint64_t keep_free = 0;              // bytes that the device shall have left
  const std::atomic<bool>* stop = nullptr;  // give up when it is set
  // So many more bytes of items are copied or compared. Called by many threads at a time.
  std::function<void(std::uint64_t bytes)> progress = {};
};

struct Transferred {
  std::vector<UniqueFd> segments;        // as Layout has them
  std::vector<ConversionCounts> counts;  // one an item
};

// How many bytes `progress` is told of in all; the most that 64 bits hold when it is more.
std::uint64_t work_of(std::span<const Item> items, const TransferOptions& options);

// Copies the items as laid out. Source files are opened here, have the identity that the items
// name before the copy and after it, or Error kUnreadable is thrown. Throws Error kDeviceFailed,
// OutOfDeviceMemory. Nothing is left allocated when it throws; copies that are under way are waited
// for first.
Transferred transfer(Device& device, std::span<const Item> items, const Layout& layout,
                     const TransferOptions& options);

}  // namespace stfs::gpu
