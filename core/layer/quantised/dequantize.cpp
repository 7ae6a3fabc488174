#include "core/layer/quantised/dequantize.h"

#include "core/format/ieee.h"
#include "core/layer/quantised/quantized_part.h"
#include "core/layer/quantised/transposed.h"
#include "core/recipe/elements.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kStep = 64 << 10;  // elements that are decoded from one read of the inputs
constexpr std::size_t kRun = 4096;         // elements of a row that are decoded at a time

class Dequantized : public Producer {
 public:
  Dequantized(const QuantizedLayout& layout, QuantizedInputs inputs, DType to, TileCache& tiles,
              std::uint64_t tensor)
      : layout_(layout),
        inputs_(std::move(inputs)),
        round_(type_info(to).from_f32),
        width_(type_info(to).block_bytes),
        align_(alignment(layout.weight)) {
    if (layout.is_transposed) transposed_.emplace(layout_, round_, width_, tiles, tensor);
  }

  std::uint64_t size() const override {
    return layout_.matrices * layout_.rows * layout_.columns * width_;
  }

  int verify() const override {
    const Source* verified = nullptr;
    for (const QuantizedInput& input : inputs_) {
      if (input.source() != nullptr && input.source() == verified) continue;
      if (const int error = input.verify()) return error;
      verified = input.source();
    }
    return 0;
  }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    if (std::ranges::all_of(inputs_, &QuantizedInput::is_complete)) return;
    const QuantizedInput& index = inputs_[static_cast<std::size_t>(Role::kIndex)];
    if (index.length() > 0) index.missing(0, index.length(), missing);
    PartDecoder decoder(layout_, inputs_);
    if (transposed_) return transposed_->missing(decoder, offset, length, missing);
    const std::uint64_t first = offset / width_;
    const std::uint64_t last = (offset + length - 1) / width_;
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

  // Not inline, because the compiler could move the arithmetic out of the lifetime of
  // IeeeArithmetic.
  [[gnu::noinline]] int fill(std::uint64_t offset, std::span<std::byte> out) const {
    Work work(layout_, inputs_);
    if (const int error = load_index(work)) return error;
    if (transposed_) return transposed_->copy(work.decoder, work.index, offset, out);
    work.run.resize(kRun + 256);  // room for one more block
    return fill_elements(offset, out, width_,
                         [&](std::uint64_t first, std::uint64_t& count, std::byte* to) {
                           return some_elements(work, first, count, to);
                         });
  }

 private:
  struct Work {
    Work(const QuantizedLayout& layout, const QuantizedInputs& inputs) : decoder(layout, inputs) {}
    PartDecoder decoder;
    std::vector<std::int32_t> index;
    std::vector<float> run;
  };

  // Consecutive elements, in a part that is decoded from one read of the inputs.
  struct Piece {
    MatrixPart part;         // its first column is aligned
    std::uint64_t skip;      // elements of the part before the first element of the piece
    std::uint64_t elements;  // at most the requested number
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
    const QuantizedInput& index = inputs_[static_cast<std::size_t>(Role::kIndex)];
    work.decoder.set_index_known();
    if (!index.is_there()) return 0;
    work.index.resize(static_cast<std::size_t>(index.length() / sizeof(std::int32_t)));
    const std::span bytes = std::as_writable_bytes(std::span(work.index));
    if (const int error = index.read(0, bytes)) return error;
    if (layout_.index_may_be_unused && std::ranges::find(work.index, -1) != work.index.end()) {
      work.index.clear();
    }
    return 0;
  }

  // Writes the first elements of `elements` elements, and sets `elements` to the number written.
  int some_elements(Work& work, std::uint64_t first, std::uint64_t& elements,
                    std::byte* out) const {
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

  const QuantizedLayout& layout_;
  QuantizedInputs inputs_;
  FromF32* round_;
  std::uint64_t width_;  // bytes per element of the result
  std::uint64_t align_;
  std::optional<Transposed> transposed_;
};

}  // namespace

std::unique_ptr<const Producer> dequantized(const QuantizedLayout& layout, QuantizedInputs inputs,
                                            DType to, TileCache& tiles, std::uint64_t tensor) {
  return std::make_unique<Dequantized>(layout, std::move(inputs), to, tiles, tensor);
}

}  // namespace stfs
