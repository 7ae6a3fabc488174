#include "core/layer/quantised/packing.h"

namespace stfs {
namespace {

constexpr std::size_t kWord = 4;  // bytes
constexpr std::uint64_t kScaleTileRows = 128;
constexpr std::uint64_t kScaleTileColumns = 4;
constexpr std::uint64_t kScaleTileBytes = kScaleTileRows * kScaleTileColumns;

}  // namespace

std::uint64_t fields_in_word(const Packing& p) { return 32U / p.bits; }

std::uint64_t alignment(const Packing& p) {
  switch (p.codes) {
    case Codes::kTyped:
      return type_info(p.type).block_elements;
    case Codes::kFields:
    case Codes::kInterleaved:
      return 8;
    case Codes::kWords:
    case Codes::kCarried:
      return fields_in_word(p);
    case Codes::kHighFirst:
    case Codes::kF4HighFirst:
      return 2;
    case Codes::kTiles:
      return kScaleTileColumns;
    default:
      return 1;
  }
}

std::uint64_t lead(const Packing& p, std::uint64_t column) {
  switch (p.codes) {
    case Codes::kTyped:
    case Codes::kTurned:
      return type_info(p.type).offset_of(column);
    case Codes::kSigned:
    case Codes::kF4Down:
    case Codes::kNibblesDown:
      return column;
    case Codes::kFields:
    case Codes::kCarried:
      return column / 8 * p.bits;
    case Codes::kWords:
      return column / fields_in_word(p) * kWord;
    case Codes::kInterleaved:
      return column / 8 * kWord;
    case Codes::kHighFirst:
    case Codes::kF4HighFirst:
      return column / 2;
    case Codes::kTiles:
      return column / kScaleTileColumns * kScaleTileBytes;
    default:
      return column * kWord;
  }
}

std::uint64_t tail(const Packing& p, std::uint64_t columns) {
  switch (p.codes) {
    case Codes::kTyped: {
      const TypeInfo& type = type_info(p.type);
      return type.offset_of(columns + type.block_elements - 1);
    }
    case Codes::kFields:
    case Codes::kCarried:
      return columns / 8 * p.bits + (columns % 8 * p.bits + 7) / 8;
    case Codes::kWords:
      return (columns + fields_in_word(p) - 1) / fields_in_word(p) * kWord;
    case Codes::kInterleaved:
      return (columns + 7) / 8 * kWord;
    case Codes::kHighFirst:
    case Codes::kF4HighFirst:
      return (columns + 1) / 2;
    case Codes::kTiles:
      return (columns + kScaleTileColumns - 1) / kScaleTileColumns * kScaleTileBytes;
    default:
      return lead(p, columns);
  }
}

std::pair<std::uint64_t, std::uint64_t> stored_rows(const Packing& p, std::uint64_t begin,
                                                    std::uint64_t end) {
  if (p.codes == Codes::kDown) {
    return {begin / 32 * p.bits + begin % 32 * p.bits / 32,
            end / 32 * p.bits + (end % 32 * p.bits + 31) / 32};
  }
  if (p.codes == Codes::kWordsDown) {
    return {begin / fields_in_word(p), (end + fields_in_word(p) - 1) / fields_in_word(p)};
  }
  if (p.codes == Codes::kF4Down || p.codes == Codes::kNibblesDown) {
    return {begin / 2, (end + 1) / 2};
  }
  if (p.codes == Codes::kTiles)
    return {begin / kScaleTileRows, (end + kScaleTileRows - 1) / kScaleTileRows};
  return {begin, end};
}

std::optional<std::uint64_t> row_bytes(const Packing& packing, std::uint64_t rows,
                                       std::uint64_t columns) {
  if (rows > kMostElements || columns > kMostElements) return std::nullopt;
  return tail(packing, packing.codes == Codes::kTurned ? rows : columns);
}

std::optional<std::uint64_t> matrix_bytes(const Packing& packing, std::uint64_t rows,
                                          std::uint64_t columns) {
  std::uint64_t bytes = 0;
  if (rows > kMostElements || columns > kMostElements) return std::nullopt;
  const std::uint64_t stored =
      packing.codes == Codes::kTurned ? columns : stored_rows(packing, 0, rows).second;
  if (__builtin_mul_overflow(stored, packing.pitch, &bytes)) return std::nullopt;
  return bytes;
}

}  // namespace stfs
