// How the elements of a quantised matrix lie in its bytes.
//
// Thread safety: values and pure functions.
#pragma once

#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace stfs {

// How the codes of a matrix are packed. A field is an unsigned integer of Packing::bits bits.
enum class Codes : std::uint8_t {
  kTyped,        // elements or blocks of Packing::type, which has a to_f32
  kSigned,       // I8
  kFields,       // fields as a stream of bits along each row, from the lowest bit of each byte on
  kWords,        // 32 / bits fields in each word of 32 bits along a row; the upper bits are unused
  kInterleaved,  // 8 fields of 4 bits in a word; field 8k+j is at bit 4 * {0,4,1,5,2,6,3,7}[j]
                 // (AWQ)
  kHighFirst,    // two fields of 4 bits in a byte, the first in the high bits
  kDown,         // fields as a stream down each column, in rows of words of 32 bits
  kF4Down,       // two F4 in a byte, of neighbouring rows, the first in the low bits
  kWordsDown,    // 32 / bits fields in each word, down each column; the upper bits are unused
  kF4HighFirst,  // two F4 in a byte, the first in the high bits
  kNibblesDown,  // two fields of 4 bits in a byte, of neighbouring rows, the first in the low bits
  kTiles,        // bytes of Packing::type in tiles of 128 rows and 4 columns: row r of a tile is at
                 // byte r % 32 * 16 + r / 32 * 4 (the order of cuBLAS); the last tiles are padded
  kByColumn,     // elements of Packing::type, column after column
  kCarried,      // kFields of 2, 4 or 8 bits; Packing::added was taken from all fields of a word of
                 // 32 bits by one subtraction, which borrowed from the next field where one was 0
};

// A packed matrix of one or more matrices that lie one behind the other.
struct Packing {
  Codes codes = Codes::kTyped;
  DType type = DType::kF32;  // of kTyped, kTiles and kByColumn
  std::uint8_t bits = 0;     // of a field
  std::uint8_t added = 0;    // added to a field, modulo 2^bits (zeros of GPTQ's first version)
  std::int32_t offset = 0;   // taken from a field
  std::uint64_t pitch = 0;   // bytes from a row of elements, words or tiles to the next; of
                             // kByColumn from a column to the next
  std::uint64_t matrix = 0;  // bytes of one matrix; 0: all matrices of the layout share one

  bool operator==(const Packing&) const = default;
};

// The bytes of a row, of kByColumn a column, and of a matrix, in a packing that is dense. nullopt:
// overflow, or a row that does not end where a byte, word or block does.
std::optional<std::uint64_t> row_bytes(const Packing& packing, std::uint64_t rows,
                                       std::uint64_t columns);
std::optional<std::uint64_t> matrix_bytes(const Packing& packing, std::uint64_t rows,
                                          std::uint64_t columns);

// No dimension and no matrix has more elements. The functions below expect that.
inline constexpr std::uint64_t kMostElements = std::uint64_t{1} << 56;

// How many fields a word of 32 bits has, of Codes::kWords and Codes::kWordsDown.
std::uint64_t fields_in_word(const Packing& packing);
// A row may be decoded from multiples of so many columns on.
std::uint64_t alignment(const Packing& packing);
// The bytes of a row before the element `column`, which is aligned.
std::uint64_t lead(const Packing& packing, std::uint64_t column);
// The bytes of the first `columns` elements of a row: of whole bytes, blocks or words.
std::uint64_t tail(const Packing& packing, std::uint64_t columns);
// The rows of bytes, words or tiles that hold the rows [begin, end) of elements. Not of kByColumn,
// whose functions above take rows for columns.
std::pair<std::uint64_t, std::uint64_t> stored_rows(const Packing& packing, std::uint64_t begin,
                                                    std::uint64_t end);

}  // namespace stfs
