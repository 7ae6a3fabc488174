// How the elements of a quantised matrix are packed into bytes.
//
// Thread safety: values and pure functions.
#pragma once

#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace stfs {

// The packing of a matrix's codes. A field is an unsigned integer of Packing::bits bits.
enum class Codes : std::uint8_t {
  kTyped,   // elements or blocks of Packing::type, which must have a to_f32
  kSigned,  // I8
  kFields,  // fields as a stream of bits along each row, starting at the lowest bit of each byte
  kWords,   // 32 / bits fields per 32-bit word along a row; the upper bits are unused
  // Eight fields of 4 bits per word; field 8k+j is at bit 4 * {0,4,1,5,2,6,3,7}[j] (AWQ).
  kInterleaved,
  kHighFirst,    // two fields of 4 bits per byte, the first in the high bits
  kDown,         // fields as a stream down each column, in rows of 32-bit words
  kF4Down,       // two F4 per byte, from neighbouring rows, the first in the low bits
  kWordsDown,    // 32 / bits fields per word, down each column; the upper bits are unused
  kF4HighFirst,  // two F4 per byte, the first in the high bits
  // Two fields of 4 bits per byte, from neighbouring rows, the first in the low bits.
  kNibblesDown,
  // Bytes of Packing::type in tiles of 128 rows and 4 columns, in the order of cuBLAS. The last
  // tiles are padded. Row r of a tile starts at its byte r % 32 * 16 + r / 32 * 4.
  kTiles,
  kByColumn,  // elements of Packing::type, column after column
  // Like kFields with 2, 4 or 8 bits, but the writer subtracted Packing::added from all fields of a
  // 32-bit word with a single subtraction, which borrowed from the next field if a field was 0.
  kCarried,
};

// The packing of one or more consecutive matrices.
struct Packing {
  Codes codes = Codes::kTyped;
  DType type = DType::kF32;  // for kTyped, kTiles and kByColumn
  std::uint8_t bits = 0;     // per field
  // A number that is added to each field, modulo 2^bits (the zeros of GPTQ's first version).
  std::uint8_t added = 0;
  std::int32_t offset = 0;  // a number that is subtracted from each field
  // Bytes from one row of elements, words or tiles to the next; for kByColumn, from one column to
  // the next.
  std::uint64_t pitch = 0;
  std::uint64_t matrix = 0;  // bytes per matrix; 0: all matrices of the layout share one

  bool operator==(const Packing&) const = default;
};

// Return the bytes of a row (of a column, for kByColumn) and of a matrix in a dense packing. Return
// nullopt on overflow, or for a row that does not end at the end of a byte, word or block.
std::optional<std::uint64_t> row_bytes(const Packing& packing, std::uint64_t rows,
                                       std::uint64_t columns);
std::optional<std::uint64_t> matrix_bytes(const Packing& packing, std::uint64_t rows,
                                          std::uint64_t columns);

// The maximum number of elements of a dimension and of a matrix. The functions below rely on it.
inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 56;

// Returns the number of fields in a 32-bit word of Codes::kWords or Codes::kWordsDown.
std::uint64_t fields_in_word(const Packing& packing);
// Returns the alignment in columns: a row can be decoded from any multiple of it.
std::uint64_t alignment(const Packing& packing);
// Returns the bytes of a row before the element `column`, which must be aligned.
std::uint64_t lead(const Packing& packing, std::uint64_t column);
// Returns the bytes of the first `columns` elements of a row, rounded up to whole bytes, blocks or
// words.
std::uint64_t tail(const Packing& packing, std::uint64_t columns);
// Returns the range of stored rows (of bytes, words or tiles) that hold the rows [begin, end) of
// elements. Not for kByColumn, because the functions above exchange its rows and columns.
std::pair<std::uint64_t, std::uint64_t> stored_rows(const Packing& packing, std::uint64_t begin,
                                                    std::uint64_t end);

}  // namespace stfs
