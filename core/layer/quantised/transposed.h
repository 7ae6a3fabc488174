// A result that is the transpose of the stored matrices, read by tiles.
//
// A band is as many rows of the result as a tile has; its tiles lie side by side:
//
//        one row of the result
//      ┌───────┬───────┬───────┬──┐
// band │ tile  │ tile  │ tile  │  │  rows of a tile: columns of the stored matrix
//      ├───────┼───────┼───────┼──┤
//      │       │       │       │  │
//
// A read computes those tiles of its bands that no other thread computes, and then waits for the
// others. So the requests of one sequential reader share the work.
//
// Thread safety: const members may be called from any thread. Lifetime: the constructor's arguments
// outlive it.
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
  // `width` is the number of bytes of an element, `tensor` the number of the tensor among those
  // that share the cache.
  Transposed(const QuantizedLayout& layout, FromF32* round, std::uint64_t width, TileCache& cache,
             std::uint64_t tensor);

  // Appends the bytes of the inputs that a range of the result needs and that are not here.
  void missing(PartDecoder& decoder, std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const;
  // 0 or an errno.
  int copy(PartDecoder& decoder, std::span<const std::int32_t> index, std::uint64_t offset,
           std::span<std::byte> out) const;

 private:
  // Rows and columns are those of the result, in one matrix.
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
  std::uint64_t pitch_of(const Tile& tile) const;  // bytes from a row of the tile to the next
  int compute(PartDecoder& decoder, std::span<const std::int32_t> index, const Tile& tile,
              Scratch& scratch, std::byte* out) const;
  void copy_rows(const Range& range, const Tile& tile, const std::byte* from, std::byte* out) const;

  const QuantizedLayout& layout_;
  FromF32* round_;
  std::uint64_t width_;
  TileCache& cache_;
  std::uint64_t tensor_;
  std::uint64_t row_;  // bytes of a row of the result
  std::uint64_t tile_rows_, tile_columns_;
};

}  // namespace stfs
