// The values of quantised weights, computed from the stored bytes when they are read.
//
// A stored matrix has codes, and a grid of scales, zeros and biases; a block of the matrix shares
// one element of the grid. The value of the element at (row, column) is
//
//   ((code - zero) * scale [* factor]) + bias        each operation rounded to binary32
//
// and is then rounded once, to the type of the result. Every scheme of quantisation is a set of
// parameters of this (QuantizedLayout):
//
//            columns                        grid columns
//        ┌──────────────┐                   ┌──────────┐
//   rows │ codes        │  block ──────►    │ scales   │ grid rows     and the same of zeros,
//   biases
//        └──────────────┘                   └──────────┘
//
// A result is the stored matrix, or its transpose. Of a row-major result a read computes its
// elements alone. A row of a transposed result needs bytes of every stored row; it is computed in
// tiles of many rows and columns, and TileCache keeps the tiles that were read last.
//
// Thread safety: const members, the functions and TileCache may be called from any thread. Layouts,
// sources and caches outlive the producers.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <utility>
#include <vector>

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
};

// A packed matrix of one or more matrices that lie one behind the other.
struct Packing {
  Codes codes = Codes::kTyped;
  DType type = DType::kF32;  // of kTyped
  std::uint8_t bits = 0;     // of a field
  std::uint8_t added = 0;    // added to a field, modulo 2^bits (zeros of GPTQ's first version)
  std::int32_t offset = 0;   // taken from a field
  std::uint64_t pitch = 0;   // bytes from a row of elements or words to the next
  std::uint64_t matrix = 0;  // bytes of one matrix; 0: all matrices of the layout share one

  bool operator==(const Packing&) const = default;
};

// The bytes of a row of `columns` elements, and of a matrix, in a packing that is dense. nullopt:
// overflow, or a row that does not end where a byte, word or block does.
std::optional<std::uint64_t> row_bytes(const Packing& packing, std::uint64_t columns);
std::optional<std::uint64_t> matrix_bytes(const Packing& packing, std::uint64_t rows,
                                          std::uint64_t columns);

// What each stored tensor of a quantised weight is for, in the order in which they are listed.
enum class Role : std::uint8_t {
  kWeight,
  kScale,
  kShape,  // read when the checkpoint is loaded; gives no bytes here
  kZero,
  kIndex,  // I32, the block of each row or column
  kBias,
  kFactor,
  kNestedScale,  // scale = levels[field] * nested[block / nested_block] + nested_offset
  kLevels,       // 256 F32
  kMap,          // 16 F32: a field of the weight means this value
  kState,        // as kShape
};
inline constexpr std::size_t kRoles = 11;
using QuantizedInputs = std::array<Extent, kRoles>;  // null source: absent

struct QuantizedLayout {
  std::uint64_t matrices = 1, rows = 0, columns = 0;  // as they are stored
  bool is_transposed = false;                         // the result has [columns, rows] matrices
  Packing weight;
  std::uint64_t block_rows = 1, block_columns = 1;  // of the stored matrix; the last may be cut
  std::uint64_t grid_rows = 0, grid_columns = 0;    // 0: no grid
  Packing scale, zero, bias;                        // of the grid, where there is such an input
  bool index_is_of_rows = false;                    // kIndex has a block a row, not a column
  bool index_may_be_unused = false;                 // -1 in any place: as if it were absent

  enum class Factor : std::uint8_t { kMultiplies, kDivides };  // the scales
  Factor factor = Factor::kMultiplies;
  DType factor_type = DType::kF32;
  bool factor_is_of_matrix = false;  // one a matrix, not one for all

  std::uint64_t nested_block = 0;
  float nested_offset = 0;
  bool is_divided_by_127 = false;  // the product is multiplied by 0.007874015718698502F

  bool operator==(const QuantizedLayout&) const = default;
};

// All that the values of a tensor depend on, but the type that they are rounded to.
struct QuantizedRecipe {
  const QuantizedLayout* layout = nullptr;  // borrowed from the tensor's checkpoint
  QuantizedInputs inputs;
};

// Whether the inputs have exactly the bytes that the layout needs, and nothing overflows. A
// producer may be made only then. Returns the first role for which it is not so.
std::optional<Role> misfit(const QuantizedLayout& layout, const QuantizedInputs& inputs);

// The tiles of transposed results that were read last, at most kMost bytes of them, and those that
// are computed, at most kAtOnce.
class TileCache {
 public:
  static constexpr std::size_t kMost = std::size_t{64} << 20;

  struct Key {
    std::uint64_t tensor, row, column;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
  };
  struct Tile {
    std::mutex mutex;  // held while the tile is computed
    bool is_ready = false;
    std::vector<std::byte> bytes;
  };
  // The tile, which may not be ready: whoever holds its mutex computes it then.
  std::shared_ptr<Tile> get(const Key& key, std::size_t bytes);
  bool has(const Key& key) const;

  // Whoever computes a tile has one; the constructor waits for it. No one waits for a tile with it.
  static constexpr std::ptrdiff_t kAtOnce = 8;
  class Turn {
   public:
    explicit Turn(TileCache& cache) : cache_(cache) { cache.turns_.acquire(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { cache_.turns_.release(); }

   private:
    TileCache& cache_;
  };

 private:
  struct Kept {
    Key key;
    std::shared_ptr<Tile> tile;
    std::size_t bytes;
  };
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // the last used first
  std::map<Key, std::list<Kept>::iterator> by_key_;
  std::size_t bytes_ = 0;
  std::counting_semaphore<kAtOnce> turns_{kAtOnce};
};

// A producer of the values as BF16, F16 or F32, row-major. misfit() is nullopt. `tiles` is for a
// transposed layout, `tensor` the number of the tensor among those that share it.
std::unique_ptr<const Producer> dequantized(const QuantizedLayout& layout,
                                            const QuantizedInputs& inputs, DType to,
                                            TileCache& tiles, std::uint64_t tensor);

}  // namespace stfs
