// Block types, random blocks and comparable values, for the tests of the decoders.
#pragma once

#include "core/format/types.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace stfs::test {

inline std::vector<DType> block_types() {
  std::vector<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (type_info(dtype).kind == TypeKind::kQuantized) types.push_back(dtype);
  }
  return types;
}

// Returns random bytes. The scales among them include NaN, infinity, zero and subnormal numbers.
inline std::string random_blocks(DType dtype, std::size_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(dtype));
  std::string bytes(count * type_info(dtype).block_bytes, '\0');
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(&bytes[at], &word, std::min(bytes.size() - at, sizeof word));
  }
  return bytes;
}

// Returns the bits of values. All NaNs get the same bits, because their payload is undefined.
inline std::vector<std::uint32_t> comparable(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  bits.reserve(values.size());
  for (const float value : values) {
    bits.push_back(std::isnan(value) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(value));
  }
  return bits;
}

}  // namespace stfs::test
