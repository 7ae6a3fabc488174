#include "core/recipe/dequantize.h"

#include "core/format/from_f32.h"
#include "core/format/ieee.h"
#include "core/recipe/quantized_part.h"
#include "core/recipe/turn.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kStep = 64 << 10;  // elements that are decoded from one read of the inputs
constexpr std::size_t kRun = 4096;         // elements of a row that are decoded at a time

void keep_f32(const float* in, std::size_t count, std::byte* out) {
  std::memcpy(out, in, count * sizeof(float));
}

class Dequantized : public Producer {
 public:
  Dequantized(const QuantizedLayout& layout, const QuantizedInputs& inputs, DType to,
              TileCache& tiles, std::uint64_t tensor)
      : layout_(layout),
        inputs_(inputs),
        round_(to == DType::kF32    ? keep_f32
               : to == DType::kBF16 ? f32_to_bf16
                                    : f32_to_f16),
        width_(type_info(to).block_bytes),
        align_(alignment(layout.weight)),
        tiles_(tiles),
        tensor_(tensor) {
    if (!layout.is_transposed) return;
    const std::uint64_t row = layout.rows * width_;
    const std::uint64_t fit = row == 0 ? kTileRows : kBand / row / kLeastRows * kLeastRows;
    tile_rows_ = std::clamp(fit, kLeastRows, kTileRows);
    // What a tile needs has to be on this machine at once, in whole blocks of a remote source.
    const Packing& codes = layout.weight;
    const std::uint64_t block = std::min(codes.pitch, 2 * Source::kFetchUnit);
    const std::uint64_t rows = stored_rows(codes, 0, kTileColumns).second;
    const std::uint64_t most = block == 0 ? kTileColumns : kFetched * kTileColumns / (block * rows);
    tile_columns_ = std::clamp(most / kStripe * kStripe, kLeastColumns, kTileColumns);
  }

  std::uint64_t size() const override {
    return layout_.matrices * layout_.rows * layout_.columns * width_;
  }

  int verify() const override {
    const Source* verified = nullptr;
    for (const Extent& input : inputs_) {
      if (!is_there(input) || input.source == verified) continue;
      if (const int error = input.source->verify()) return error;
      verified = input.source;
    }
    return 0;
  }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const auto is_complete = [](const Extent& input) {
      return !is_there(input) || input.source->is_complete();
    };
    if (std::ranges::all_of(inputs_, is_complete)) return;
    const Extent& index = inputs_[static_cast<std::size_t>(Role::kIndex)];
    if (is_there(index) && index.length > 0 && !index.source->has({index.offset, index.length})) {
      missing.push_back(index);
    }
    const std::uint64_t first = offset / width_;
    const std::uint64_t last = (offset + length - 1) / width_;
    PartDecoder decoder(layout_, inputs_);
    if (layout_.is_transposed) return missing_of_tiles(decoder, first, last + 1 - first, missing);
    for (std::uint64_t at = first; at <= last;) {
      const Piece piece = piece_at(at, last + 1 - at);
      decoder.aim(piece.part, {});
      decoder.missing(missing);
      at += piece.elements;
    }
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const IeeeArithmetic ieee;
    return fill(offset, out);
  }

  // Not inline: the compiler could move the arithmetic out of the life of IeeeArithmetic.
  [[gnu::noinline]] int fill(std::uint64_t offset, std::span<std::byte> out) const {
    Work work(layout_, inputs_);
    if (const int error = load_index(work)) return error;
    while (!out.empty()) {
      const std::uint64_t first = offset / width_;
      const std::uint64_t skip = offset % width_;
      const std::uint64_t whole = out.size() / width_;
      std::size_t take = 0;
      if (skip == 0 && whole > 0) {
        std::uint64_t elements = whole;
        if (const int error = some_elements(work, first, elements, out.data())) return error;
        take = static_cast<std::size_t>(elements * width_);
      } else {  // a part of one
        std::array<std::byte, sizeof(float)> edge{};
        std::uint64_t elements = 1;
        if (const int error = some_elements(work, first, elements, edge.data())) return error;
        take = std::min<std::size_t>(out.size(), width_ - skip);
        std::memcpy(out.data(), edge.data() + skip, take);
      }
      out = out.subspan(take);
      offset += take;
    }
    return 0;
  }

 private:
  // A band of tiles as wide as the result has at most so many bytes, so that the cache holds those
  // of some sequential readers; a tile has at least so many rows that its runs are worth a read.
  static constexpr std::uint64_t kBand = 8 << 20;  // bytes
  static constexpr std::uint64_t kLeastRows = 64;
  static constexpr std::uint64_t kTileRows = 1024;
  static constexpr std::uint64_t kTileColumns = 2048;
  static constexpr std::uint64_t kLeastColumns = 64;
  static constexpr std::uint64_t kFetched = 6 << 20;  // bytes; less than kMostMissing
  static constexpr std::uint64_t kStripe = 32;  // stored rows that are decoded and turned together
  static constexpr std::uint64_t kMostAtOnce = 1 << 20;  // bytes that a stripe reads

  struct Work {
    Work(const QuantizedLayout& layout, const QuantizedInputs& inputs) : decoder(layout, inputs) {}
    PartDecoder decoder;
    std::vector<std::int32_t> index;
    std::vector<float> run = std::vector<float>(kRun + 256);  // and a block more
  };

  // Elements that lie one behind the other, in a part that is decoded from one read of the inputs.
  struct Piece {
    MatrixPart part;         // with an aligned first column
    std::uint64_t skip;      // elements of the part before the first
    std::uint64_t elements;  // at most those asked for
  };

  Piece piece_at(std::uint64_t element, std::uint64_t most) const {
    const std::uint64_t row = element / layout_.columns;
    const std::uint64_t column = element % layout_.columns;
    MatrixPart part{.matrix = row / layout_.rows, .row = row % layout_.rows, .rows = 1};
    if (column == 0 && most >= layout_.columns && layout_.columns <= kStep) {
      part.rows =
          std::min({most / layout_.columns, kStep / layout_.columns, layout_.rows - part.row});
      part.columns = layout_.columns;
      return {part, 0, part.rows * part.columns};
    }
    part.column = column - column % align_;
    const std::uint64_t skip = column - part.column;
    const std::uint64_t elements = std::min({most, layout_.columns - column, kStep - skip});
    const std::uint64_t end = (column + elements + align_ - 1) / align_ * align_;
    part.columns = std::min(end, layout_.columns) - part.column;
    return {part, skip, elements};
  }

  int load_index(Work& work) const {
    const Extent& index = inputs_[static_cast<std::size_t>(Role::kIndex)];
    work.decoder.set_index_known();
    if (!is_there(index)) return 0;
    work.index.resize(static_cast<std::size_t>(index.length / sizeof(std::int32_t)));
    const std::span bytes = std::as_writable_bytes(std::span(work.index));
    if (const int error = index.source->read_unverified(bytes, index.offset)) return error;
    if (layout_.index_may_be_unused && std::ranges::find(work.index, -1) != work.index.end()) {
      work.index.clear();
    }
    return 0;
  }

  // Writes the first of `elements` elements, and sets `elements` to their number.
  int some_elements(Work& work, std::uint64_t first, std::uint64_t& elements,
                    std::byte* out) const {
    if (layout_.is_transposed) return copy_of_tile(work, first, elements, out);
    const Piece piece = piece_at(first, elements);
    elements = piece.elements;
    work.decoder.aim(piece.part, work.index);
    if (const int error = work.decoder.read()) return error;
    const MatrixPart& part = piece.part;
    const std::uint64_t most = kRun / align_ * align_;
    for (std::uint64_t row = 0; row < part.rows; ++row) {
      for (std::uint64_t at = 0; at < part.columns; at += most) {
        const auto count = static_cast<std::size_t>(std::min(most, part.columns - at));
        const int error =
            work.decoder.decode(part.row + row, part.column + at, count, work.run.data());
        if (error != 0) return error;
        const std::uint64_t begin = std::max(at, piece.skip);
        const std::uint64_t end = std::min(at + count, piece.skip + elements);
        if (begin >= end) continue;
        round_(work.run.data() + (begin - at), static_cast<std::size_t>(end - begin),
               out + (row * part.columns + begin - piece.skip) * width_);
      }
    }
    return 0;
  }

  // --- transposed: rows and columns of a tile are those of the result

  struct Tile {
    std::uint64_t matrix;
    std::uint64_t row, rows, column, columns;
  };

  Tile tile_at(std::uint64_t matrix, std::uint64_t row, std::uint64_t column) const {
    Tile tile{.matrix = matrix,
              .row = row / tile_rows_ * tile_rows_,
              .rows = tile_rows_,
              .column = column / tile_columns_ * tile_columns_,
              .columns = tile_columns_};
    tile.rows = std::min(tile.rows, layout_.columns - tile.row);
    tile.columns = std::min(tile.columns, layout_.rows - tile.column);
    return tile;
  }
  // Of an element of the result.
  Tile tile_of(std::uint64_t element, std::uint64_t& row, std::uint64_t& column) const {
    column = element % layout_.rows;
    row = element / layout_.rows % layout_.columns;
    return tile_at(element / layout_.rows / layout_.columns, row, column);
  }
  TileCache::Key key_of(const Tile& tile) const {
    return {tensor_, tile.matrix * layout_.columns + tile.row, tile.column};
  }
  // The stored rows of a tile are decoded in stripes.
  MatrixPart stripe_of(const Tile& tile, std::uint64_t done) const {
    return {.matrix = tile.matrix,
            .row = tile.column + done,
            .rows = std::min(kStripe, tile.columns - done),
            .column = tile.row,
            .columns = tile.rows};
  }

  int copy_of_tile(Work& work, std::uint64_t first, std::uint64_t& elements, std::byte* out) const {
    std::uint64_t row = 0;
    std::uint64_t column = 0;
    const Tile tile = tile_of(first, row, column);
    const auto bytes = static_cast<std::size_t>(tile.rows * tile.columns * width_);
    const std::shared_ptr<TileCache::Tile> kept = tiles_.get(key_of(tile), bytes);
    {
      const std::lock_guard lock(kept->mutex);
      if (!kept->is_ready) {
        const TileCache::Turn turn(tiles_);
        kept->bytes.resize(bytes);
        if (const int error = compute(work, tile, kept->bytes.data())) return error;
        kept->is_ready = true;
      }
    }
    elements = std::min(elements, tile.column + tile.columns - column);
    const std::uint64_t at = (row - tile.row) * tile.columns + column - tile.column;
    std::memcpy(out, kept->bytes.data() + at * width_, static_cast<std::size_t>(elements * width_));
    return 0;
  }

  int compute(Work& work, const Tile& tile, std::byte* out) const {
    const auto height = static_cast<std::size_t>(tile.rows);
    // Rows that are turned must not share the cache's sets.
    const std::size_t pitch = (height + 32) * static_cast<std::size_t>(width_);
    std::vector<float> run(height + 256);
    std::vector<std::byte> stripe(kStripe * pitch);
    for (std::uint64_t done = 0; done < tile.columns; done += kStripe) {
      MatrixPart part = stripe_of(tile, done);
      const auto width = static_cast<std::size_t>(part.rows);
      work.decoder.aim(part, work.index);
      // An index may lead to blocks that are far apart: then each row is read alone.
      if (work.decoder.bytes() > kMostAtOnce) part.rows = 1;
      for (std::size_t i = 0; i < width; ++i) {
        if (i % part.rows == 0) {
          part.row = tile.column + done + i;
          work.decoder.aim(part, work.index);
          if (const int error = work.decoder.read()) return error;
        }
        const int error =
            work.decoder.decode(tile.column + done + i, part.column, height, run.data());
        if (error != 0) return error;
        round_(run.data(), height, stripe.data() + i * pitch);
      }
      turn(stripe.data(), width_, width, height, pitch, out + done * width_,
           static_cast<std::size_t>(tile.columns * width_));
    }
    return 0;
  }

  void missing_of_tiles(PartDecoder& decoder, std::uint64_t first, std::uint64_t elements,
                        std::vector<Extent>& missing) const {
    std::optional<TileCache::Key> before;
    for (std::uint64_t end = first + elements; first < end;) {
      std::uint64_t row = 0;
      std::uint64_t column = 0;
      const Tile tile = tile_of(first, row, column);
      const TileCache::Key key = key_of(tile);
      if (before != key && !tiles_.has(key)) {
        decoder.aim({.matrix = tile.matrix,
                     .row = tile.column,
                     .rows = tile.columns,
                     .column = tile.row,
                     .columns = tile.rows},
                    {});
        decoder.missing(missing);
      }
      before = key;
      first += std::min(end - first, tile.column + tile.columns - column);
    }
  }

  const QuantizedLayout& layout_;
  QuantizedInputs inputs_;
  Rounding* round_;
  std::uint64_t width_;  // bytes of an element of the result
  std::uint64_t align_;
  TileCache& tiles_;
  std::uint64_t tensor_;
  std::uint64_t tile_rows_ = kTileRows;
  std::uint64_t tile_columns_ = kTileColumns;
};

}  // namespace

std::unique_ptr<const Producer> dequantized(const QuantizedLayout& layout,
                                            const QuantizedInputs& inputs, DType to,
                                            TileCache& tiles, std::uint64_t tensor) {
  return std::make_unique<Dequantized>(layout, inputs, to, tiles, tensor);
}

}  // namespace stfs
