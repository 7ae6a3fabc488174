// Makes test bytes for a device, sends them, and reads them back.
#pragma once

#include "tools/gpu/device/device.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stfs::gpu::test {

// Returns `size` bytes that depend on the seed and their position.
std::vector<std::byte> pattern(std::uint64_t seed, std::size_t size);

// Sends `bytes` to [at, at+size) of the segment in tiles of `tile_bytes`.
void send_all(Lane& lane, DeviceSegment& segment, std::span<const std::byte> bytes,
              std::size_t tile_bytes, std::uint64_t at = 0);

// Fills `out` (at most one tile) from the segment.
void read_back(Lane& lane, DeviceSegment& segment, std::uint64_t offset, std::span<std::byte> out);

}  // namespace stfs::gpu::test
