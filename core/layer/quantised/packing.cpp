#include "core/layer/quantised/packing.h"

namespace stfs {
namespace {

// The smallest part of a packing that can be decoded on its own: `columns` columns of `rows` rows,
// in `bytes` bytes.
struct Unit {
  std::uint64_t columns, bytes, rows = 1;
};

Unit unit_of(const Packing& p) {
  constexpr std::uint64_t kWord = 4;  // bytes
  switch (p.codes) {
    case Codes::kTyped:
    case Codes::kByColumn: return {type_info(p.type).block_elements, type_info(p.type).block_bytes};
    case Codes::kFields: return {8, p.bits};
    case Codes::kWords:
    case Codes::kCarried: return {fields_in_word(p), kWord};
    case Codes::kInterleaved: return {8, kWord};
    case Codes::kHighFirst:
    case Codes::kF4HighFirst: return {2, 1};
    case Codes::kF4Down:
    case Codes::kNibblesDown: return {1, 1, 2};
    case Codes::kWordsDown: return {1, kWord, fields_in_word(p)};
    case Codes::kDown:  // a stream of words: see stored_rows()
      return {1, kWord};
    case Codes::kTiles: return {4, 512, 128};
    case Codes::kSigned: break;
  }
  return {1, 1};
}

std::uint64_t quotient_up(std::uint64_t n, std::uint64_t by) { return (n + by - 1) / by; }

}  // namespace

std::uint64_t fields_in_word(const Packing& p) { return 32U / p.bits; }

std::uint64_t alignment(const Packing& p) { return unit_of(p).columns; }

std::uint64_t lead(const Packing& p, std::uint64_t column) {
  const Unit unit = unit_of(p);
  return column / unit.columns * unit.bytes;
}

std::uint64_t tail(const Packing& p, std::uint64_t columns) {
  if (p.codes == Codes::kFields || p.codes == Codes::kCarried) {
    return columns / 8 * p.bits + quotient_up(columns % 8 * p.bits, 8);
  }
  const Unit unit = unit_of(p);
  return quotient_up(columns, unit.columns) * unit.bytes;
}

std::pair<std::uint64_t, std::uint64_t> stored_rows(const Packing& p, std::uint64_t begin,
                                                    std::uint64_t end) {
  if (p.codes == Codes::kDown) {
    return {begin / 32 * p.bits + begin % 32 * p.bits / 32,
            end / 32 * p.bits + quotient_up(end % 32 * p.bits, 32)};
  }
  const Unit unit = unit_of(p);
  return {begin / unit.rows, quotient_up(end, unit.rows)};
}

std::optional<std::uint64_t> row_bytes(const Packing& packing, std::uint64_t rows,
                                       std::uint64_t columns) {
  if (rows > kMaxElements || columns > kMaxElements) return std::nullopt;
  return tail(packing, packing.codes == Codes::kByColumn ? rows : columns);
}

std::optional<std::uint64_t> matrix_bytes(const Packing& packing, std::uint64_t rows,
                                          std::uint64_t columns) {
  std::uint64_t bytes = 0;
  if (rows > kMaxElements || columns > kMaxElements) return std::nullopt;
  const std::uint64_t stored =
      packing.codes == Codes::kByColumn ? columns : stored_rows(packing, 0, rows).second;
  if (__builtin_mul_overflow(stored, packing.pitch, &bytes)) return std::nullopt;
  return bytes;
}

}  // namespace stfs
