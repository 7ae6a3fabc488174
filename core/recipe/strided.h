// The elements of an array that lies in another order than row-major: transposed, sliced, expanded.
//
// A tile is a part of the result, consecutive and at most a few MiB; it is computed once for the
// readers that share it. Where long runs stand side by side, they are read without one.
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
};

// `below` has all bytes of the elements. `number`: that of the tensor among those that share
// `tiles`.
std::unique_ptr<const Producer> strided(Content below, const StridedShape& shape, TileCache& tiles,
                                        std::uint64_t number);

}  // namespace stfs
