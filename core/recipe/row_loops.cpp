#include "core/recipe/unpack.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace stfs {
namespace {

constexpr std::size_t kWord = 4;  // bytes

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

}  // namespace

void unpack(const Packing& p, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
            std::size_t count, float* out) {
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
      return unpack_down(p, in, pitch, row, count, out);
  }
}

}  // namespace stfs
