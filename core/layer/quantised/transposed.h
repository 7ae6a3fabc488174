// A result that is the transpose of the stored matrices, computed by tiles.
//
// A band consists of as many rows of the result as a tile has. Its tiles are side by side:
//
//        one row of the result
//      ┌───────┬───────┬───────┬──┐
// band │ tile  │ tile  │ tile  │  │  rows of a tile: columns of the stored matrix
//      ├───────┼───────┼───────┼──┤
//      │       │       │       │  │
//
// A read first computes the tiles of its bands that no other thread is computing, and then waits
// for the others. So the requests of one sequential reader share the work.
//
// Thread safety: const members may be called from any thread. Lifetime: the arguments of the
// constructor must outlive it.
#pragma once

#include "core/format/types.h"
#include "core/layer/quantised/quantized_layout.h"
#include "core/layer/quantised/quantized_part.h"
#include "core/recipe/content.h"
#include "core/recipe/tile_cache.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stfs {

class Transposed {
 public:
  // `width` is the size of an element in bytes: 2 or 4. `tensor` is the number of the tensor among
  // the tensors that share the cache.
  Transposed(const QuantizedLayout& layout, FromF32* round, std::uint64_t width, TileCache& cache,
             std::uint64_t tensor);

  // Appends the extents of the inputs that a range of the result needs and that are not on this
  // machine.
  void missing(PartDecoder& decoder, std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const;
  // Writes a range of the result to `out`. Returns 0 or an errno.
  int copy(PartDecoder& decoder, std::span<const std::int32_t> index, std::uint64_t offset,
           std::span<std::byte> out) const;

 private:
  // A tile of the result. Rows and columns count within one matrix of the result.
  struct Tile {
    std::uint64_t matrix;
    std::uint64_t row, rows, column, columns;
  };
  struct Range;  // bytes of one band
  struct Scratch;

  Range range_at(std::uint64_t offset, std::uint64_t length) const;
  template <class Act>
  int for_tiles(const Range& range, const Act& act) const;
  TileCache::Key key_of(const Tile& tile) const;
  std::uint64_t pitch_of(const Tile& tile) const;  // bytes from one row of the tile to the next
  int compute(PartDecoder& decoder, std::span<const std::int32_t> index, const Tile& tile,
              Scratch& scratch, std::byte* out) const;
  void copy_rows(const Range& range, const Tile& tile, const std::byte* from, std::byte* out) const;

  const QuantizedLayout& layout_;
  FromF32* round_;
  std::uint64_t width_;
  TileCache& cache_;
  std::uint64_t tensor_;
  std::uint64_t row_;  // bytes per row of the result
  std::uint64_t tile_rows_, tile_columns_;
};

}  // namespace stfs
