#include "core/layer/quantised/row_loops.h"

#include "core/base/vectors.h"

#include <algorithm>
#include <array>
#include <cstring>

// Highway compiles this file once per instruction set and chooses one at run time. The compiler
// vectorises the loops.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/layer/quantised/row_loops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stfs::HWY_NAMESPACE {
namespace {

constexpr std::size_t kWord = 4;  // bytes
// The number of fields that are extracted from their words, into one byte each, before they are
// converted to values.
constexpr std::size_t kSome = 1024;

HWY_INLINE std::uint32_t load_word(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Converts a field to its value. The loops use a copy, because a compiler must otherwise assume
// that stores of floats change the bytes of a Packing.
struct Meaning {
  explicit Meaning(const Packing& p) : mask((1U << p.bits) - 1), added(p.added), offset(p.offset) {}
  HWY_INLINE float operator()(std::uint32_t field) const {
    return static_cast<float>(static_cast<std::int32_t>((field + added) & mask) - offset);
  }
  std::uint32_t mask, added;
  std::int32_t offset;
};

void unpack_bytes(const Packing& p, const std::uint8_t* HWY_RESTRICT in, std::size_t count,
                  float* HWY_RESTRICT out) {
  const Meaning value(p);
  for (std::size_t i = 0; i < count; ++i) out[i] = value(in[i]);
}

void unpack_fields(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  const Meaning value(p);
  const std::size_t bits = p.bits;
  // Eight fields take `bits` bytes.
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

// The carry only goes upwards, so the last word needs no bytes after the bytes of its fields.
void unpack_carried(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  const std::size_t bits = p.bits;
  const std::size_t each = 32 / bits;
  const std::uint32_t mask = (1U << bits) - 1;
  const std::uint32_t added = ~0U / mask * p.added;
  for (std::size_t i = 0; i < count; i += each, in += kWord) {
    const std::size_t some = std::min(each, count - i);
    std::uint32_t word = 0;
    std::memcpy(&word, in, (some * bits + 7) / 8);
    word += added;
    for (std::size_t k = 0; k < some; ++k) {
      const auto field = static_cast<std::int32_t>(word >> (k * bits) & mask);
      out[i + k] = static_cast<float>(field - p.offset);
    }
  }
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

// Extracts fields of 4 bits in the order of the row, one per byte. An odd count reads a whole byte.
HWY_INLINE void split_bytes(const std::uint8_t* HWY_RESTRICT in, unsigned first, unsigned second,
                            std::size_t count, std::uint8_t* HWY_RESTRICT out) {
  for (std::size_t i = 0; i < (count + 1) / 2; ++i) {
    out[2 * i] = static_cast<std::uint8_t>(in[i] >> first & 15);
    out[2 * i + 1] = static_cast<std::uint8_t>(in[i] >> second & 15);
  }
}

// Moves each of four fields of 4 bits to every second byte.
HWY_INLINE std::uint64_t spread(std::uint64_t fields) {
  fields = (fields | fields << 24) & 0x000000FF000000FF;
  return (fields | fields << 12) & 0x000F000F000F000F;
}

HWY_INLINE void split_interleaved(const std::byte* HWY_RESTRICT in, std::size_t count,
                                  std::uint8_t* HWY_RESTRICT out) {
  for (std::size_t i = 0; i < (count + 7) / 8; ++i) {
    const std::uint64_t word = load_word(in + i * kWord);
    const std::uint64_t fields = spread(word & 0xFFFF) | spread(word >> 16) << 8;
    std::memcpy(out + 8 * i, &fields, sizeof fields);
  }
}

void unpack_nibbles(const Packing& p, const std::byte* in, std::size_t count, float* out) {
  std::array<std::uint8_t, kSome + 8> fields;
  for (std::size_t done = 0; done < count; done += kSome, in += kSome / 2) {
    const std::size_t some = std::min(kSome, count - done);
    if (p.codes == Codes::kInterleaved) {
      split_interleaved(in, some, fields.data());
    } else {
      const unsigned first = p.codes == Codes::kHighFirst ? 4 : 0;
      split_bytes(reinterpret_cast<const std::uint8_t*>(in), first, 4 - first, some, fields.data());
    }
    unpack_bytes(p, fields.data(), some, out + done);
  }
}

// `in` is the first word of the column, and `in` + `pitch` is the next word of the same column.
void unpack_down(const Packing& p, const std::byte* HWY_RESTRICT in, std::uint64_t pitch,
                 std::uint64_t row, std::size_t count, float* HWY_RESTRICT out) {
  const Meaning value(p);
  const auto shift = static_cast<unsigned>(
      p.codes == Codes::kDown ? row % 32 * p.bits % 32 : row % fields_in_word(p) * p.bits);
  if (shift + p.bits <= 32) {
    for (std::size_t i = 0; i < count; ++i) out[i] = value(load_word(in + i * kWord) >> shift);
    return;
  }
  const std::byte* HWY_RESTRICT const next = in + pitch;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] =
        value(load_word(in + i * kWord) >> shift | load_word(next + i * kWord) << (32 - shift));
  }
}

constexpr std::array<float, 16> kF4{0,     0.5F,  1,     1.5F,  2,     3,     4,     6,
                                    -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

void unpack_f4_down(const std::byte* in, std::uint64_t row, std::size_t count, float* out) {
  const unsigned shift = row % 2 == 0 ? 0 : 4;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = kF4[std::to_integer<unsigned>(in[i]) >> shift & 15U];
  }
}

void unpack_f4_high_first(const std::byte* in, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned shift = i % 2 == 0 ? 4 : 0;
    out[i] = kF4[std::to_integer<unsigned>(in[i / 2]) >> shift & 15U];
  }
}

void unpack_nibbles_down(const Packing& p, const std::byte* in, std::uint64_t row,
                         std::size_t count, float* out) {
  const Meaning value(p);
  const unsigned shift = row % 2 == 0 ? 0 : 4;
  for (std::size_t i = 0; i < count; ++i) out[i] = value(std::to_integer<unsigned>(in[i]) >> shift);
}

// Converts elements of a type; element number i is at `at(i)`.
template <class At>
void unpack_gathered(const Packing& p, std::size_t count, float* out, const At& at) {
  const TypeInfo& type = type_info(p.type);
  std::array<std::byte, kSome> bytes;
  const std::size_t most = kSome / type.block_bytes;
  for (std::size_t done = 0; done < count; done += most) {
    const std::size_t some = std::min(most, count - done);
    for (std::size_t i = 0; i < some; ++i) {
      std::memcpy(&bytes[i * type.block_bytes], at(done + i), type.block_bytes);
    }
    type.to_f32(bytes.data(), some, out + done);
  }
}

void unpack_codes(const Packing& p, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
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
      return p.bits == 4   ? unpack_nibbles(p, in, count, out)
             : p.bits == 8 ? unpack_bytes(p, reinterpret_cast<const std::uint8_t*>(in), count, out)
                           : unpack_fields(p, in, count, out);
    case Codes::kWords: return unpack_words(p, in, count, out);
    case Codes::kCarried: return unpack_carried(p, in, count, out);
    case Codes::kInterleaved:
    case Codes::kHighFirst: return unpack_nibbles(p, in, count, out);
    case Codes::kF4Down: return unpack_f4_down(in, row, count, out);
    case Codes::kF4HighFirst: return unpack_f4_high_first(in, count, out);
    case Codes::kNibblesDown: return unpack_nibbles_down(p, in, row, count, out);
    case Codes::kTiles: {  // `in` is the tile of the first element
      const std::byte* const line = in + row % 32 * 16 + row % 128 / 32 * 4;
      const auto at = [line](std::size_t i) { return line + i / 4 * 512 + i % 4; };
      return unpack_gathered(p, count, out, at);
    }
    case Codes::kByColumn:  // `pitch` is the distance from one column to the next
      return unpack_gathered(p, count, out, [=](std::size_t i) { return in + i * pitch; });
    default: return unpack_down(p, in, pitch, row, count, out);
  }
}

void apply_one(const Terms& terms, std::size_t count, float* HWY_RESTRICT values) {
  const float zero = terms.zero == nullptr ? 0 : *terms.zero;
  const float scale = *terms.scale;
  const float factor = terms.factor;
  const float bias = terms.bias == nullptr ? 0 : *terms.bias;
  if (terms.is_divided) {
    for (std::size_t i = 0; i < count; ++i) values[i] = (values[i] - zero) / scale;
  } else if (terms.zero != nullptr) {
    for (std::size_t i = 0; i < count; ++i) values[i] = (values[i] - zero) * scale;
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] *= scale;
  }
  if (factor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  }
  if (terms.bias != nullptr) {
    for (std::size_t i = 0; i < count; ++i) values[i] += bias;
  }
}

void apply_own(const Terms& terms, std::size_t count, float* HWY_RESTRICT values) {
  const float* HWY_RESTRICT const zero = terms.zero;
  const float* HWY_RESTRICT const scale = terms.scale;
  const float* HWY_RESTRICT const bias = terms.bias;
  const float factor = terms.factor;
  if (terms.is_divided) {
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = (values[i] - (zero != nullptr ? zero[i] : 0)) / scale[i];
    }
  } else if (zero != nullptr) {
    for (std::size_t i = 0; i < count; ++i) values[i] = (values[i] - zero[i]) * scale[i];
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] *= scale[i];
  }
  if (factor != 1) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  }
  if (bias != nullptr) {
    for (std::size_t i = 0; i < count; ++i) values[i] += bias[i];
  }
}

template <std::size_t kSize>
HWY_INLINE void scale_all(const float* HWY_RESTRICT scales, std::size_t blocks,
                          float* HWY_RESTRICT values) {
  for (std::size_t i = 0; i < blocks; ++i, values += kSize) {
    const float scale = scales[i];
    for (std::size_t k = 0; k < kSize; ++k) values[k] *= scale;
  }
}

void scale_rows(const float* scales, std::size_t size, std::size_t blocks, float* values) {
  size == 16 ? scale_all<16>(scales, blocks, values) : scale_all<32>(scales, blocks, values);
}

}  // namespace
}  // namespace stfs::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stfs {
namespace {

HWY_EXPORT(unpack_codes);
HWY_EXPORT(apply_one);
HWY_EXPORT(apply_own);
HWY_EXPORT(scale_rows);

}  // namespace

void unpack(const Packing& packing, const std::byte* in, std::uint64_t pitch, std::uint64_t row,
            std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(unpack_codes)(packing, in, pitch, row, count, out);
}
void apply(const Terms& terms, std::size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(apply_one)(terms, count, values);
}
void apply_each(const Terms& terms, std::size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(apply_own)(terms, count, values);
}
void scale_blocks(const float* scales, std::size_t size, std::size_t blocks, float* values) {
  HWY_DYNAMIC_DISPATCH(scale_rows)(scales, size, blocks, values);
}

}  // namespace stfs

#endif
