#include "tests/gpu/device_pattern.h"

#include <algorithm>
#include <cstring>

namespace stfs::gpu::test {

std::vector<std::byte> pattern(std::uint64_t seed, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (std::size_t i = 0; i < size; i += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + i, &state, std::min(sizeof state, size - i));
  }
  return bytes;
}

void send_all(Lane& lane, DeviceSegment& segment, std::span<const std::byte> bytes,
              std::size_t tile_bytes, std::uint64_t at) {
  while (!bytes.empty()) {
    const std::size_t size = std::min(tile_bytes, bytes.size());
    std::ranges::copy(bytes.first(size), lane.tile(segment, at, size).begin());
    lane.send();
    bytes = bytes.subspan(size);
    at += size;
  }
}

void read_back(Lane& lane, DeviceSegment& segment, std::uint64_t offset, std::span<std::byte> out) {
  lane.read_ahead(segment, offset, out.size());
  std::ranges::copy(lane.read_back(), out.begin());
}

}  // namespace stfs::gpu::test
