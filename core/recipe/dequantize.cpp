#include "core/recipe/dequantize.h"

#include "core/format/from_f32.h"
#include "core/format/ieee.h"
#include "core/format/to_f32.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>

namespace stfs {
namespace {

constexpr std::size_t kWord = 4;           // bytes
constexpr std::uint64_t kStep = 64 << 10;  // elements that are decoded from one read of the inputs
constexpr std::size_t kRun = 4096;         // elements of a row that are decoded at a time

// --- packings

bool is_down(Codes codes) {
  return codes == Codes::kDown || codes == Codes::kWordsDown || codes == Codes::kF4Down;
}

std::uint64_t fields_in_word(const Packing& p) { return 32U / p.bits; }

// A row may be decoded from multiples of so many columns on.
std::uint64_t alignment(const Packing& p) {
  switch (p.codes) {
    case Codes::kTyped:
      return type_info(p.type).block_elements;
    case Codes::kFields:
    case Codes::kInterleaved:
      return 8;
    case Codes::kWords:
      return fields_in_word(p);
    case Codes::kHighFirst:
      return 2;
    default:
      return 1;
  }
}

// The bytes of a row before the element `column`, which is aligned.
std::uint64_t lead(const Packing& p, std::uint64_t column) {
  switch (p.codes) {
    case Codes::kTyped:
      return type_info(p.type).offset_of(column);
    case Codes::kSigned:
    case Codes::kF4Down:
      return column;
    case Codes::kFields:
      return column / 8 * p.bits;
    case Codes::kWords:
      return column / fields_in_word(p) * kWord;
    case Codes::kInterleaved:
      return column / 8 * kWord;
    case Codes::kHighFirst:
      return column / 2;
    default:
      return column * kWord;
  }
}

// The bytes of the first `columns` elements of a row: of whole bytes, blocks or words. The columns
// are at most kMostColumns.
constexpr std::uint64_t kMostColumns = std::uint64_t{1} << 56;
std::uint64_t tail(const Packing& p, std::uint64_t columns) {
  switch (p.codes) {
    case Codes::kTyped: {
      const TypeInfo& type = type_info(p.type);
      return type.offset_of(columns + type.block_elements - 1);
    }
    case Codes::kFields:
      return columns / 8 * p.bits + (columns % 8 * p.bits + 7) / 8;
    case Codes::kWords:
      return (columns + fields_in_word(p) - 1) / fields_in_word(p) * kWord;
    case Codes::kInterleaved:
      return (columns + 7) / 8 * kWord;
    case Codes::kHighFirst:
      return (columns + 1) / 2;
    default:
      return lead(p, columns);
  }
}

// The rows of bytes or words that hold the rows [begin, end) of elements.
std::pair<std::uint64_t, std::uint64_t> stored_rows(const Packing& p, std::uint64_t begin,
                                                    std::uint64_t end) {
  if (p.codes == Codes::kDown) {
    return {begin / 32 * p.bits + begin % 32 * p.bits / 32,
            end / 32 * p.bits + (end % 32 * p.bits + 31) / 32};
  }
  if (p.codes == Codes::kWordsDown) {
    return {begin / fields_in_word(p), (end + fields_in_word(p) - 1) / fields_in_word(p)};
  }
  if (p.codes == Codes::kF4Down) return {begin / 2, (end + 1) / 2};
  return {begin, end};
}

std::uint32_t load_word(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// What a field means. By value in the loops: a compiler must assume that stores of floats change
// the bytes of a Packing.
struct Meaning {
  explicit Meaning(const Packing& p) : mask((1U << p.bits) - 1), added(p.added), offset(p.offset) {}
  float operator()(std::uint32_t field) const {
    return static_cast<float>(static_cast<std::int32_t>((field + added) & mask) - offset);
  }
  std::uint32_t mask, added;
  std::int32_t offset;
};

// --- decoding a run of a row

void unpack_fields(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  const Meaning value(p);
  const std::size_t bits = p.bits;
  // Eight fields are `bits` bytes.
  for (std::size_t i = 0; i < count; i += 8) {
    const std::size_t some = std::min<std::size_t>(8, count - i);
    std::uint64_t stream = 0;
    std::memcpy(&stream, in, (some * bits + 7) / 8);
    for (std::size_t k = 0; k < some; ++k) {
      out[i + k] = value(static_cast<std::uint32_t>(stream >> (k * bits)));
    }
    in += bits;
  }
}

void unpack_bytes(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  const Meaning value(p);
  for (std::size_t i = 0; i < count; ++i) out[i] = value(std::to_integer<unsigned>(in[i]));
}

// `first` and `second` are the places of the fields of a byte.
void unpack_nibbles(const Packing& p, unsigned first, unsigned second, const std::byte* in,
                    std::size_t count, float* out) {
  const Meaning value(p);
  for (std::size_t i = 0; i < count / 2; ++i) {
    const auto pair = std::to_integer<unsigned>(in[i]);
    out[2 * i] = value(pair >> first);
    out[2 * i + 1] = value(pair >> second);
  }
  if (count % 2 != 0) out[count - 1] = value(std::to_integer<unsigned>(in[count / 2]) >> first);
}

void unpack_words(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  const Meaning value(p);
  const std::size_t bits = p.bits;
  const std::size_t each = 32 / bits;
  for (std::size_t i = 0; i < count; i += each, in += kWord) {
    const std::uint32_t word = load_word(in);
    const std::size_t some = std::min(each, count - i);
    for (std::size_t k = 0; k < some; ++k) out[i + k] = value(word >> (k * bits));
  }
}

void unpack_interleaved(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  constexpr std::array<unsigned, 8> kPlace{0, 4, 1, 5, 2, 6, 3, 7};
  const Meaning value(p);
  for (std::size_t i = 0; i < count; i += 8, in += kWord) {
    const std::uint32_t word = load_word(in);
    const std::size_t some = std::min<std::size_t>(8, count - i);
    for (std::size_t k = 0; k < some; ++k) out[i + k] = value(word >> (4 * kPlace[k]));
  }
}

// `in` is the first word of the column; `pitch` leads to the next word of the same column.
void unpack_down(const Packing& p, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
                 std::size_t count, float* out) {
  const Meaning value(p);
  const auto shift = static_cast<unsigned>(
      p.codes == Codes::kDown ? row % 32 * p.bits % 32 : row % fields_in_word(p) * p.bits);
  if (shift + p.bits <= 32) {
    for (std::size_t i = 0; i < count; ++i) out[i] = value(load_word(in + i * kWord) >> shift);
    return;
  }
  const std::byte* const next = in + pitch;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] =
        value(load_word(in + i * kWord) >> shift | load_word(next + i * kWord) << (32 - shift));
  }
}

void unpack_f4_down(const std::byte* in, std::uint64_t row, std::size_t count, float* out) {
  constexpr std::array<float, 16> kValues{0,     0.5F,  1,     1.5F,  2,     3,     4,     6,
                                          -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  const unsigned shift = row % 2 == 0 ? 0 : 4;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = kValues[std::to_integer<unsigned>(in[i]) >> shift & 15U];
  }
}

// --- windows: the bytes of an input that a part of the stored matrix needs

// Runs of bytes at equal distances.
struct Window {
  std::uint64_t begin = 0;  // in the input, bytes
  std::uint64_t run = 0;    // bytes
  std::uint64_t stride = 0;
  std::uint64_t count = 0;          // runs
  std::uint64_t row = 0;            // the stored row of the first run
  std::uint64_t column = 0;         // the first element of the runs
  const std::byte* data = nullptr;  // the runs one behind the other, once they are read

  const std::byte* at(std::uint64_t stored_row) const { return data + (stored_row - row) * run; }
};

// Rows and columns of one stored matrix.
struct Part {
  std::uint64_t matrix = 0;
  std::uint64_t row = 0, rows = 0;
  std::uint64_t column = 0, columns = 0;
};

Window window_of(const Packing& p, const Part& part) {
  const auto [first, last] = stored_rows(p, part.row, part.row + part.rows);
  const std::uint64_t begin = lead(p, part.column);
  return {.begin = part.matrix * p.matrix + first * p.pitch + begin,
          .run = tail(p, part.column + part.columns) - begin,
          .stride = p.pitch,
          .count = last - first,
          .row = first,
          .column = part.column};
}

void unpack(const Packing& p, const Window& window, std::uint64_t row, std::uint64_t column,
            std::size_t count, float* out) {
  const std::byte* const in =
      window.at(stored_rows(p, row, row + 1).first) + lead(p, column) - lead(p, window.column);
  switch (p.codes) {
    case Codes::kTyped: {
      const TypeInfo& type = type_info(p.type);
      const std::size_t block = type.kind == TypeKind::kQuantized ? type.block_elements : 1;
      type.to_f32(in, (count + block - 1) / block * block, out);
      return;
    }
    case Codes::kSigned:
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = static_cast<float>(std::to_integer<std::int8_t>(in[i]));
      }
      return;
    case Codes::kFields:
      return p.bits == 4   ? unpack_nibbles(p, 0, 4, in, count, out)
             : p.bits == 8 ? unpack_bytes(p, in, count, out)
                           : unpack_fields(p, in, count, out);
    case Codes::kWords:
      return unpack_words(p, in, count, out);
    case Codes::kInterleaved:
      return unpack_interleaved(p, in, count, out);
    case Codes::kHighFirst:
      return unpack_nibbles(p, 4, 0, in, count, out);
    case Codes::kF4Down:
      return unpack_f4_down(in, row, count, out);
    default:
      return unpack_down(p, in, window.run, row, count, out);
  }
}

// Multiplies each block of `kSize` values by a scale of its own.
template <std::size_t kSize>
void scale_blocks(const float* scales, std::size_t blocks, float* out) {
  for (std::size_t i = 0; i < blocks; ++i, out += kSize) {
    const float scale = scales[i];
    for (std::size_t k = 0; k < kSize; ++k) out[k] *= scale;
  }
}

// --- transposing

template <class T>
struct Lanes {
  static constexpr int kCount = 16 / sizeof(T);
  using Vector [[gnu::vector_size(16)]] = T;
};

// Element by element: the first halves of two vectors in turn, and their second halves.
void zip(Lanes<std::uint16_t>::Vector a, Lanes<std::uint16_t>::Vector b,
         Lanes<std::uint16_t>::Vector& first, Lanes<std::uint16_t>::Vector& second) {
  first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
void zip(Lanes<std::uint32_t>::Vector a, Lanes<std::uint32_t>::Vector b,
         Lanes<std::uint32_t>::Vector& first, Lanes<std::uint32_t>::Vector& second) {
  first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

// Transposes a square as wide as a vector: zipping row i with row i + n/2, log2(n) times, does it.
template <class T>
void turn_square(const std::byte* in, std::size_t in_pitch, std::byte* out, std::size_t out_pitch) {
  constexpr int kCount = Lanes<T>::kCount;
  std::array<typename Lanes<T>::Vector, kCount> rows;
  std::array<typename Lanes<T>::Vector, kCount> zipped;
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(&rows[i], in + i * in_pitch, 16);
  for (int done = 1; done < kCount; done *= 2) {
    for (std::size_t i = 0; i < kCount / 2; ++i) {
      zip(rows[i], rows[i + kCount / 2], zipped[2 * i], zipped[2 * i + 1]);
    }
    rows = zipped;
  }
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(out + i * out_pitch, &rows[i], 16);
}

// Writes the transpose of a matrix; pitches are in bytes.
template <class T>
void turn(const std::byte* in, std::size_t rows, std::size_t columns, std::size_t in_pitch,
          std::byte* out, std::size_t out_pitch) {
  constexpr std::size_t kCount = Lanes<T>::kCount;
  const std::size_t whole_rows = rows / kCount * kCount;
  const std::size_t whole_columns = columns / kCount * kCount;
  for (std::size_t column = 0; column < whole_columns; column += kCount) {
    for (std::size_t row = 0; row < whole_rows; row += kCount) {
      turn_square<T>(in + row * in_pitch + column * sizeof(T), in_pitch,
                     out + column * out_pitch + row * sizeof(T), out_pitch);
    }
  }
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t row = column < whole_columns ? whole_rows : 0; row < rows; ++row) {
      std::memcpy(out + column * out_pitch + row * sizeof(T),
                  in + row * in_pitch + column * sizeof(T), sizeof(T));
    }
  }
}

// --- the type of the result

void keep_f32(const float* in, std::size_t count, std::byte* out) {
  std::memcpy(out, in, count * sizeof(float));
}

// --- the producer

// Each read loads the whole index: this bounds its memory.
constexpr std::uint64_t kMostIndexed = std::uint64_t{1} << 20;

bool is_there(const Extent& input) { return input.source != nullptr; }

// The values of a part of a stored matrix, decoded row by row from bytes that were read before.
class Decoder {
 public:
  Decoder(const QuantizedLayout& layout, const QuantizedInputs& inputs)
      : layout_(layout), inputs_(inputs) {}

  // Sets the windows of a part. The part's first column is aligned, as is its end unless it is that
  // of the row.
  void aim(const Part& part, std::span<const std::int32_t> index) {
    part_ = part;
    index_ = index;
    row_of_grid_.reset();
    windows_ = {};
    window(Role::kWeight) = window_of(layout_.weight, part);
    if (layout_.grid_rows == 0 || part.rows == 0) return;
    grid_ = grid_of(part);
    const auto add = [&](Role role, const Packing& packing) {
      if (is_there(input(role))) window(role) = window_of(packing, grid_);
    };
    add(Role::kScale, layout_.scale);
    add(Role::kZero, layout_.zero);
    add(Role::kBias, layout_.bias);
    const auto add_run = [&](Role role, std::uint64_t begin, std::uint64_t bytes) {
      if (is_there(input(role))) window(role) = {begin, bytes, bytes, 1};
    };
    const std::uint64_t factor = type_info(layout_.factor_type).block_bytes;
    add_run(Role::kFactor, layout_.factor_is_of_matrix ? part.matrix * factor : 0, factor);
    if (is_there(input(Role::kNestedScale))) {
      // Only flat weights are nested: a grid of one row.
      const std::uint64_t first = grid_.column / layout_.nested_block;
      const std::uint64_t last = (grid_.column + grid_.columns - 1) / layout_.nested_block;
      add_run(Role::kNestedScale, first * sizeof(float), (last - first + 1) * sizeof(float));
    }
    add_run(Role::kLevels, 0, kLevels * sizeof(float));
    add_run(Role::kMap, 0, kCodesOfMap * sizeof(float));
  }

  void missing(std::vector<Extent>& missing) const {
    for (std::size_t i = 0; i < kRoles; ++i) {
      Window window = windows_[i];
      if (window.run == 0 || window.count == 0) continue;
      if (window.stride <= Source::kFetchUnit) {  // the runs touch every block between them
        window.run += (window.count - 1) * window.stride;
        window.count = 1;
      }
      for (std::uint64_t k = 0; k < window.count; ++k) {
        const Extent run{inputs_[i].source, inputs_[i].offset + window.begin + k * window.stride,
                         window.run};
        if (!run.source->has({run.offset, run.length})) missing.push_back(run);
      }
    }
  }

  // That read() will read.
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const Window& window : windows_) bytes += window.run * window.count;
    return bytes;
  }

  int read() {
    const std::uint64_t bytes = this->bytes();
    if (bytes > capacity_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
      capacity_ = bytes;
    }
    std::byte* at = bytes_.get();
    for (std::size_t i = 0; i < kRoles; ++i) {
      windows_[i].data = at;
      const int error = for_runs(windows_[i], [&](std::uint64_t begin, std::uint64_t length) {
        const std::span to(at, static_cast<std::size_t>(length));
        at += length;
        return inputs_[i].source->read_unverified(to, inputs_[i].offset + begin);
      });
      if (error != 0) return error;
    }
    load_constants();
    return 0;
  }

  // The values of [column, column + count) of a row of the part; the column is aligned. `out` has
  // room for a whole block more. Returns 0, or EIO for an index outside of the grid.
  int decode(std::uint64_t row, std::uint64_t column, std::size_t count, float* out) {
    unpack(layout_.weight, window(Role::kWeight), row, column, count, out);
    if (is_there(input(Role::kMap))) {
      for (std::size_t i = 0; i < count; ++i) out[i] = map_[static_cast<std::size_t>(out[i])];
    }
    if (layout_.grid_rows == 0) return 0;
    std::uint64_t grid_row = row / layout_.block_rows;
    if (layout_.index_is_of_rows && !index_.empty()) {
      const std::int32_t block = index_[static_cast<std::size_t>(row)];
      if (block < 0 || static_cast<std::uint64_t>(block) >= layout_.grid_rows) return EIO;
      grid_row = static_cast<std::uint64_t>(block);
    }
    load_grid(grid_row);
    if (!index_.empty() && !layout_.index_is_of_rows) return apply_index(column, count, out);
    for (std::size_t i = scale_whole_blocks(column, count, out); i < count;) {
      const std::uint64_t block = (column + i) / layout_.block_columns;
      if (layout_.block_columns == 1 && !layout_.is_divided_by_127) {
        apply_each(static_cast<std::size_t>(block - grid_.column), count, out);
        break;
      }
      const std::uint64_t end = (block + 1) * layout_.block_columns - column;
      const std::size_t some = static_cast<std::size_t>(std::min<std::uint64_t>(end, count)) - i;
      apply(static_cast<std::size_t>(block - grid_.column), some, out + i);
      i += some;
    }
    return 0;
  }

 private:
  static constexpr std::size_t kLevels = 256;
  static constexpr std::size_t kCodesOfMap = 16;
  static constexpr std::uint64_t kAlignedGrid = 32;  // a multiple of each alignment of a grid

  Window& window(Role role) { return windows_[static_cast<std::size_t>(role)]; }
  const Extent& input(Role role) const { return inputs_[static_cast<std::size_t>(role)]; }

  // The part of the grid that a part of the matrix uses.
  Part grid_of(const Part& part) const {
    Part grid{.matrix = part.matrix,
              .row = part.row / layout_.block_rows,
              .column = part.column / layout_.block_columns};
    std::uint64_t end_row = (part.row + part.rows - 1) / layout_.block_rows + 1;
    std::uint64_t end = (part.column + part.columns - 1) / layout_.block_columns + 1;
    if (!index_.empty() || (is_there(input(Role::kIndex)) && !knows_index_)) {
      if (layout_.index_is_of_rows) {
        grid.row = 0;
        end_row = layout_.grid_rows;
      } else {
        grid.column = 0;
        end = layout_.grid_columns;
      }
    }
    if (!index_.empty() && layout_.index_is_of_rows) {
      const auto used =
          index_.subspan(static_cast<std::size_t>(part.row), static_cast<std::size_t>(part.rows));
      const auto [least, most] = std::ranges::minmax(used);
      // A row of a block that is not there fails when it is decoded.
      const auto last = static_cast<std::int64_t>(layout_.grid_rows - 1);
      grid.row = static_cast<std::uint64_t>(std::clamp<std::int64_t>(least, 0, last));
      end_row = static_cast<std::uint64_t>(std::clamp<std::int64_t>(most, 0, last)) + 1;
    }
    grid.column -= grid.column % kAlignedGrid;
    const std::uint64_t rounded = (end + kAlignedGrid - 1) / kAlignedGrid * kAlignedGrid;
    grid.rows = end_row - grid.row;
    grid.columns = std::min(rounded, layout_.grid_columns) - grid.column;
    return grid;
  }

  template <class Do>
  static int for_runs(const Window& window, const Do& act) {
    if (window.run == window.stride && window.count > 0) {
      return window.run == 0 ? 0 : act(window.begin, window.run * window.count);
    }
    for (std::uint64_t i = 0; i < window.count; ++i) {
      if (window.run == 0) break;
      if (const int error = act(window.begin + i * window.stride, window.run)) return error;
    }
    return 0;
  }

  void load_constants() {
    const auto load = [&](Role role, std::size_t count, auto& to) {
      if (is_there(input(role))) std::memcpy(to.data(), window(role).data, count * sizeof(float));
    };
    load(Role::kLevels, kLevels, levels_);
    load(Role::kMap, kCodesOfMap, map_);
    if (is_there(input(Role::kFactor))) {
      type_info(layout_.factor_type).to_f32(window(Role::kFactor).data, 1, &factor_);
    }
  }

  // Fills scales_, zeros_ and biases_ with a row of the grid, the columns of grid_.
  void load_grid(std::uint64_t row) {
    if (row_of_grid_ == row) return;
    row_of_grid_ = row;
    const auto count = static_cast<std::size_t>(grid_.columns);
    const auto load = [&](Role role, const Packing& packing, std::vector<float>& to) {
      if (!is_there(input(role))) return;
      to.resize(count + kAlignedGrid);
      unpack(packing, window(role), row, grid_.column, count, to.data());
    };
    load(Role::kScale, layout_.scale, scales_);
    load(Role::kZero, layout_.zero, zeros_);
    load(Role::kBias, layout_.bias, biases_);
    if (is_there(input(Role::kNestedScale))) {
      const std::uint64_t first = grid_.column / layout_.nested_block;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t at = (grid_.column + i) / layout_.nested_block - first;
        float nested = 0;
        std::memcpy(&nested, window(Role::kNestedScale).data + at * sizeof nested, sizeof nested);
        const float product = levels_[static_cast<std::size_t>(scales_[i])] * nested;
        scales_[i] = product + layout_.nested_offset;
      }
    }
    if (!is_there(input(Role::kFactor))) return;
    for (std::size_t i = 0; i < count; ++i) {
      scales_[i] = layout_.factor == QuantizedLayout::Factor::kMultiplies ? scales_[i] * factor_
                                                                          : scales_[i] / factor_;
    }
  }

  // Scales the blocks of 16 or 32 columns that have nothing but a scale, from the first element on.
  // Returns the number of elements that are done.
  std::size_t scale_whole_blocks(std::uint64_t column, std::size_t count, float* out) const {
    const std::uint64_t size = layout_.block_columns;
    const bool has_more =
        is_there(input(Role::kZero)) || is_there(input(Role::kBias)) || layout_.is_divided_by_127;
    if (has_more || (size != 16 && size != 32) || column % size != 0) return 0;
    const float* const scales = scales_.data() + (column / size - grid_.column);
    const std::size_t blocks = count / static_cast<std::size_t>(size);
    size == 16 ? scale_blocks<16>(scales, blocks, out) : scale_blocks<32>(scales, blocks, out);
    return blocks * static_cast<std::size_t>(size);
  }

  // `block` is counted from the first of grid_.
  void apply(std::size_t block, std::size_t count, float* out) const {
    constexpr float kPer127 = 0.007874015718698502F;
    if (is_there(input(Role::kZero))) {
      const float zero = zeros_[block];
      for (std::size_t i = 0; i < count; ++i) out[i] -= zero;
    }
    const float scale = scales_[block];
    for (std::size_t i = 0; i < count; ++i) out[i] *= scale;
    if (layout_.is_divided_by_127) {
      for (std::size_t i = 0; i < count; ++i) out[i] *= kPer127;
    }
    if (is_there(input(Role::kBias))) {
      const float bias = biases_[block];
      for (std::size_t i = 0; i < count; ++i) out[i] += bias;
    }
  }

  // As apply(), each element with a block of its own, from `block` on.
  void apply_each(std::size_t block, std::size_t count, float* out) const {
    if (is_there(input(Role::kZero))) {
      for (std::size_t i = 0; i < count; ++i) out[i] -= zeros_[block + i];
    }
    for (std::size_t i = 0; i < count; ++i) out[i] *= scales_[block + i];
    if (is_there(input(Role::kBias))) {
      for (std::size_t i = 0; i < count; ++i) out[i] += biases_[block + i];
    }
  }

  int apply_index(std::uint64_t column, std::size_t count, float* out) const {
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t block = index_[static_cast<std::size_t>(column) + i];
      if (block < 0 || static_cast<std::uint64_t>(block) >= layout_.grid_columns) return EIO;
      apply(static_cast<std::size_t>(block), 1, out + i);
    }
    return 0;
  }

 public:
  // Without it, the windows of a layout with an index are those that any index could need.
  void set_index_known() { knows_index_ = true; }

 private:
  const QuantizedLayout& layout_;
  const QuantizedInputs& inputs_;
  Part part_;
  Part grid_;
  std::span<const std::int32_t> index_;
  bool knows_index_ = false;
  std::array<Window, kRoles> windows_;
  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t capacity_ = 0;
  std::optional<std::uint64_t> row_of_grid_;
  std::vector<float> scales_, zeros_, biases_;
  std::array<float, kLevels> levels_{};
  std::array<float, kCodesOfMap> map_{};
  float factor_ = 0;
};

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
    Decoder decoder(layout_, inputs_);
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
    Decoder decoder;
    std::vector<std::int32_t> index;
    std::vector<float> run = std::vector<float>(kRun + 256);  // and a block more
  };

  // Elements that lie one behind the other, in a part that is decoded from one read of the inputs.
  struct Piece {
    Part part;               // with an aligned first column
    std::uint64_t skip;      // elements of the part before the first
    std::uint64_t elements;  // at most those asked for
  };

  Piece piece_at(std::uint64_t element, std::uint64_t most) const {
    const std::uint64_t row = element / layout_.columns;
    const std::uint64_t column = element % layout_.columns;
    Part part{.matrix = row / layout_.rows, .row = row % layout_.rows, .rows = 1};
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
    const Part& part = piece.part;
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
  Part stripe_of(const Tile& tile, std::uint64_t done) const {
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
      Part part = stripe_of(tile, done);
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
      const auto turn_it = width_ == 2 ? turn<std::uint16_t> : turn<std::uint32_t>;
      turn_it(stripe.data(), width, height, pitch, out + done * width_,
              static_cast<std::size_t>(tile.columns * width_));
    }
    return 0;
  }

  void missing_of_tiles(Decoder& decoder, std::uint64_t first, std::uint64_t elements,
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

// The bytes of all matrices of a packing; nullopt on overflow or for a pitch that is too small.
std::optional<std::uint64_t> bytes_of(const Packing& packing, std::uint64_t matrices,
                                      std::uint64_t rows, std::uint64_t columns) {
  const auto row = row_bytes(packing, columns);
  const auto matrix = matrix_bytes(packing, rows, columns);
  std::uint64_t all = 0;
  if (!row || !matrix || packing.pitch < *row) return std::nullopt;
  if (packing.matrix != 0 && packing.matrix != *matrix) return std::nullopt;
  const std::uint64_t count = packing.matrix == 0 ? std::min<std::uint64_t>(matrices, 1) : matrices;
  if (__builtin_mul_overflow(*matrix, count, &all)) return std::nullopt;
  return all;
}

}  // namespace

std::optional<std::uint64_t> row_bytes(const Packing& packing, std::uint64_t columns) {
  if (columns > kMostColumns) return std::nullopt;
  return tail(packing, columns);
}

std::optional<std::uint64_t> matrix_bytes(const Packing& packing, std::uint64_t rows,
                                          std::uint64_t columns) {
  std::uint64_t bytes = 0;
  if (rows > kMostColumns || columns > kMostColumns) return std::nullopt;
  const std::uint64_t stored = is_down(packing.codes) ? stored_rows(packing, 0, rows).second : rows;
  if (__builtin_mul_overflow(stored, packing.pitch, &bytes)) return std::nullopt;
  return bytes;
}

std::optional<Role> misfit(const QuantizedLayout& layout, const QuantizedInputs& inputs) {
  const auto input = [&](Role role) -> const Extent& {
    return inputs[static_cast<std::size_t>(role)];
  };
  std::uint64_t elements = 0;
  if (__builtin_mul_overflow(layout.rows, layout.columns, &elements) ||
      __builtin_mul_overflow(elements, layout.matrices, &elements) || elements > kMostColumns) {
    return Role::kWeight;
  }
  const auto fits = [&](Role role, const Packing& packing, std::uint64_t rows,
                        std::uint64_t columns) {
    return !is_there(input(role)) ||
           bytes_of(packing, layout.matrices, rows, columns) == input(role).length;
  };
  const auto has = [&](Role role, std::uint64_t bytes) {
    return !is_there(input(role)) || input(role).length == bytes;
  };
  if (!fits(Role::kWeight, layout.weight, layout.rows, layout.columns)) return Role::kWeight;
  if (layout.grid_rows == 0) return std::nullopt;
  // An index says where the blocks lie, and each of its elements is checked when it is used.
  const bool has_index = is_there(input(Role::kIndex));
  const auto covers = [](std::uint64_t grid, std::uint64_t block, std::uint64_t size) {
    return block > 0 && (size == 0 || (size - 1) / block < grid);
  };
  if (!covers(layout.grid_rows, layout.block_rows, layout.rows) ||
      !covers(layout.grid_columns, layout.block_columns, layout.columns)) {
    return Role::kScale;
  }
  for (const auto& [role, packing] :
       {std::pair(Role::kScale, &layout.scale), std::pair(Role::kZero, &layout.zero),
        std::pair(Role::kBias, &layout.bias)}) {
    if (!fits(role, *packing, layout.grid_rows, layout.grid_columns)) return role;
  }
  if (!is_there(input(Role::kScale))) return Role::kScale;
  const std::uint64_t indexed = layout.index_is_of_rows ? layout.rows : layout.columns;
  if (has_index && (indexed > kMostIndexed || !has(Role::kIndex, indexed * sizeof(std::int32_t)))) {
    return Role::kIndex;
  }
  const std::uint64_t factors = layout.factor_is_of_matrix ? layout.matrices : 1;
  if (!has(Role::kFactor, factors * type_info(layout.factor_type).block_bytes)) {
    return Role::kFactor;
  }
  if (is_there(input(Role::kNestedScale))) {
    const std::uint64_t block = layout.nested_block;
    if (block == 0 || layout.grid_rows != 1 || layout.matrices != 1) return Role::kNestedScale;
    const std::uint64_t count =
        layout.grid_columns == 0 ? 0 : (layout.grid_columns - 1) / block + 1;
    if (!has(Role::kNestedScale, count * sizeof(float))) return Role::kNestedScale;
    if (!has(Role::kLevels, 256 * sizeof(float)) || !is_there(input(Role::kLevels))) {
      return Role::kLevels;
    }
  }
  if (!has(Role::kMap, 16 * sizeof(float))) return Role::kMap;
  return std::nullopt;
}

std::shared_ptr<TileCache::Tile> TileCache::get(const Key& key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return found->second->tile;
  }
  kept_.push_front({key, std::make_shared<Tile>(), bytes});
  by_key_[key] = kept_.begin();
  bytes_ += bytes;
  while (bytes_ > kMost && kept_.size() > 1) {
    bytes_ -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
  return kept_.front().tile;
}

bool TileCache::has(const Key& key) const {
  std::shared_ptr<Tile> tile;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return false;
    tile = found->second->tile;
  }
  const std::unique_lock lock(tile->mutex, std::try_to_lock);
  return !lock || tile->is_ready;
}

std::unique_ptr<const Producer> dequantized(const QuantizedLayout& layout,
                                            const QuantizedInputs& inputs, DType to,
                                            TileCache& tiles, std::uint64_t tensor) {
  return std::make_unique<Dequantized>(layout, inputs, to, tiles, tensor);
}

}  // namespace stfs
