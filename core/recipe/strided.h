// The elements of an array that lies in another order than row-major: transposed, sliced, expanded.
//
// A tile is a part of the result, consecutive; it is computed once for the readers that share it.
// Where long runs stand side by side, they are read without one.
//
// Thread safety: const members may be called from any thread. Lifetime: sources and the TileCache
// outlive the producer.
#pragma once

#include "core/recipe/content.h"
#include "core/recipe/tile_cache.h"

#include <cstdint>
#include <memory>
#include <span>

namespace stfs {

struct StridedShape {
  std::uint64_t width;                     // bytes of an element
  std::uint64_t begin;                     // of the first element in the bytes below
  std::span<const std::uint64_t> shape;    // no dimension is 0
  std::span<const std::uint64_t> strides;  // bytes, of each dimension
  // The most bytes of a tile. A tile may read all bytes below, so fewer tiles read less.
  std::uint64_t most_of_tile = std::uint64_t{8} << 20;
};

// `below` has all bytes of the elements. `number`: that of the tensor among those that share
// `tiles`.
std::unique_ptr<const Producer> strided(Content below, const StridedShape& shape, TileCache& tiles,
                                        std::uint64_t number);

}  // namespace stfs
