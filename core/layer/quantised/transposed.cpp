#include "core/layer/quantised/transposed.h"

#include "core/layer/quantised/transpose.h"
#include "core/source/source.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

namespace stfs {
namespace {

// The maximum size of a band. It allows the cache to hold the bands of several sequential readers.
constexpr std::uint64_t kBand = 8 << 20;  // bytes
// The minimum number of rows of a tile. With fewer, its runs would be too short for reads of their
// own.
constexpr std::uint64_t kLeastRows = 64;
constexpr std::uint64_t kTileRows = 1024;
// With this size, a tile is written and read in the second-level cache.
constexpr std::uint64_t kTileColumns = 512;
constexpr std::uint64_t kLeastColumns = 64;
constexpr std::uint64_t kFetched = 6 << 20;  // bytes; less than kMaxMissing
constexpr std::uint64_t kStripe = 32;        // stored rows that are decoded and transposed together
// The maximum number of bytes that a stripe reads at once.
constexpr std::uint64_t kMaxAtOnce = 1 << 20;
constexpr std::uint64_t kPadding = TileCache::kAlignment;

}  // namespace

struct Transposed::Range {
  std::uint64_t matrix, row, rows;  // the rows of the band
  std::uint64_t begin, end;         // bytes relative to the beginning of the band
};

// Buffers for the values of one stripe.
struct Transposed::Scratch {
  std::vector<float> run;
  std::vector<std::byte> rounded;
};

Transposed::Transposed(const QuantizedLayout& layout, FromF32* round, std::uint64_t width,
                       TileCache& cache, std::uint64_t tensor)
    : layout_(layout),
      round_(round),
      width_(width),
      cache_(cache),
      tensor_(tensor),
      row_(layout.rows * width) {
  const std::uint64_t fit = row_ == 0 ? kTileRows : kBand / row_ / kLeastRows * kLeastRows;
  tile_rows_ = std::clamp(fit, kLeastRows, kTileRows);
  // Limit the columns of a tile, because all blocks of a remote source that contain its codes must
  // be on this machine at the same time.
  const Packing& codes = layout.weight;
  const std::uint64_t block = std::min(codes.pitch, 2 * Source::kFetchUnit);
  const std::uint64_t rows = stored_rows(codes, 0, kTileColumns).second;
  const std::uint64_t most = block == 0 ? kTileColumns : kFetched * kTileColumns / (block * rows);
  tile_columns_ = std::clamp(most / kStripe * kStripe, kLeastColumns, kTileColumns);
}

// Returns the part of [offset, offset + length) that is in the band of its first byte.
Transposed::Range Transposed::range_at(std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t row = offset / row_;
  Range range{.matrix = row / layout_.columns,
              .row = row % layout_.columns,
              .rows = 0,
              .begin = 0,
              .end = 0};
  range.row -= range.row % tile_rows_;
  range.rows = std::min(tile_rows_, layout_.columns - range.row);
  range.begin = offset - (range.matrix * layout_.columns + range.row) * row_;
  range.end = std::min(range.begin + length, range.rows * row_);
  return range;
}

// Calls `act` for each tile that contains bytes of the range, until a call returns an errno.
template <class Act>
int Transposed::for_tiles(const Range& range, const Act& act) const {
  const std::uint64_t first = range.begin / row_;
  const std::uint64_t last = (range.end - 1) / row_;
  const std::uint64_t begin = range.begin % row_;
  const std::uint64_t end = (range.end - 1) % row_ + 1;
  for (std::uint64_t column = 0; column < layout_.rows; column += tile_columns_) {
    const Tile tile{.matrix = range.matrix,
                    .row = range.row,
                    .rows = range.rows,
                    .column = column,
                    .columns = std::min(tile_columns_, layout_.rows - column)};
    const bool is_after_begin = (column + tile.columns) * width_ > begin;
    const bool is_before_end = column * width_ < end;
    const bool is_touched = first == last       ? is_after_begin && is_before_end
                            : first + 1 == last ? is_after_begin || is_before_end
                                                : true;
    if (!is_touched) continue;
    if (const int error = act(tile)) return error;
  }
  return 0;
}

TileCache::Key Transposed::key_of(const Tile& tile) const {
  return {tensor_, tile.matrix * layout_.columns + tile.row, tile.column};
}

// Adds one cache line, because rows at distances of a power of two would share the sets of a cache.
std::uint64_t Transposed::pitch_of(const Tile& tile) const {
  return (tile.columns * width_ + kPadding - 1) / kPadding * kPadding + kPadding;
}

void Transposed::missing(PartDecoder& decoder, std::uint64_t offset, std::uint64_t length,
                         std::vector<Extent>& missing) const {
  while (length > 0) {
    const Range range = range_at(offset, length);
    for_tiles(range, [&](const Tile& tile) {
      if (cache_.has(key_of(tile))) return 0;
      decoder.aim({.matrix = tile.matrix,
                   .row = tile.column,
                   .rows = tile.columns,
                   .column = tile.row,
                   .columns = tile.rows},
                  {});
      decoder.missing(missing);
      return 0;
    });
    offset += range.end - range.begin;
    length -= range.end - range.begin;
  }
}

int Transposed::copy(PartDecoder& decoder, std::span<const std::int32_t> index,
                     std::uint64_t offset, std::span<std::byte> out) const {
  Scratch scratch;
  while (!out.empty()) {
    const Range range = range_at(offset, out.size());
    // First compute the tiles that no other thread is computing. The lock is not held while the
    // bytes are copied.
    for (const bool waits : {false, true}) {
      const int error = for_tiles(range, [&](const Tile& tile) {
        const auto bytes = static_cast<std::size_t>(tile.rows * pitch_of(tile));
        const std::shared_ptr<TileCache::Tile> kept = cache_.get(key_of(tile), bytes);
        {
          std::unique_lock lock(kept->mutex, std::defer_lock);
          if (waits) {
            lock.lock();
          } else if (!lock.try_lock()) {
            return 0;
          }
          if (!kept->is_ready) {
            const TileCache::Turn transpose(cache_);
            const int failed = compute(decoder, index, tile, scratch, kept->buffer.get());
            if (failed != 0) return failed;
            kept->is_ready = true;
          }
        }
        if (waits) copy_rows(range, tile, kept->buffer.get(), out.data());
        return 0;
      });
      if (error != 0) return error;
    }
    out = out.subspan(static_cast<std::size_t>(range.end - range.begin));
    offset += range.end - range.begin;
  }
  return 0;
}

// Copies the bytes of a range that are in a tile. `out` is for the whole range.
void Transposed::copy_rows(const Range& range, const Tile& tile, const std::byte* from,
                           std::byte* out) const {
  const std::uint64_t pitch = pitch_of(tile);
  for (std::uint64_t row = range.begin / row_; row * row_ < range.end; ++row) {
    const std::uint64_t first = row * row_ + tile.column * width_;
    const std::uint64_t begin = std::max(first, range.begin);
    const std::uint64_t end = std::min(first + tile.columns * width_, range.end);
    if (begin >= end) continue;
    std::memcpy(out + (begin - range.begin), from + row * pitch + (begin - first),
                static_cast<std::size_t>(end - begin));
  }
}

int Transposed::compute(PartDecoder& decoder, std::span<const std::int32_t> index, const Tile& tile,
                        Scratch& scratch, std::byte* out) const {
  const auto height = static_cast<std::size_t>(tile.rows);
  // Rows that are transposed together must not share the sets of a cache.
  const std::size_t pitch = (height + 32) * static_cast<std::size_t>(width_);
  scratch.run.resize(height + 256);
  scratch.rounded.resize(kStripe * pitch);
  for (std::uint64_t done = 0; done < tile.columns; done += kStripe) {
    MatrixPart part{.matrix = tile.matrix,
                    .row = tile.column + done,
                    .rows = std::min(kStripe, tile.columns - done),
                    .column = tile.row,
                    .columns = tile.rows};
    const auto width = static_cast<std::size_t>(part.rows);
    decoder.aim(part, index);
    // An index may refer to blocks that are far apart. In that case, read each row separately.
    if (decoder.bytes() > kMaxAtOnce) part.rows = 1;
    for (std::size_t i = 0; i < width; ++i) {
      const std::uint64_t row = tile.column + done + i;
      if (i % part.rows == 0) {
        part.row = row;
        decoder.aim(part, index);
        if (const int error = decoder.read()) return error;
      }
      const int error = decoder.decode(row, part.column, height, scratch.run.data());
      if (error != 0) return error;
      round_(scratch.run.data(), height, scratch.rounded.data() + i * pitch);
    }
    transpose(scratch.rounded.data(), static_cast<std::size_t>(width_), width, height, pitch,
              out + done * width_, static_cast<std::size_t>(pitch_of(tile)));
  }
  return 0;
}

}  // namespace stfs
