// Produces an array in row-major order from elements that are stored in another order: transposed,
// sliced or expanded.
//
// The result is computed in tiles, which are consecutive ranges of at most 8 MiB. Readers of the
// same tile share it. If the elements form runs of at least 4 KiB, they are read without tiles.
//
// Thread safety: const members may be called from any thread. Lifetime: the sources and the
// TileCache must outlive the producer.
#pragma once

#include "core/recipe/content.h"
#include "core/recipe/tile_cache.h"

#include <cstdint>
#include <memory>
#include <span>

namespace stfs {

struct StridedShape {
  std::uint64_t width;                     // bytes of an element
  std::uint64_t begin;                     // offset of the first element in `below`, bytes
  std::span<const std::uint64_t> shape;    // no dimension is 0
  std::span<const std::uint64_t> strides;  // bytes between neighbours, one per dimension
};

// Returns the producer. `below` contains all elements. `number` must identify the tensor among all
// tensors that share `tiles`.
std::unique_ptr<const Producer> strided(Content below, const StridedShape& shape, TileCache& tiles,
                                        std::uint64_t number);

}  // namespace stfs
