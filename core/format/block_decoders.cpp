#include "core/format/block_decoders.h"

#include "core/format/codebooks.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

// Each decoder is a plain loop. The compiler makes vectors of it, once for each set of instructions
// (docs/decisions/0017-decoders.md has figures).
#define STFS_INLINE [[gnu::always_inline]] inline

namespace stfs {
namespace {

using Byte = unsigned char;

template <class T>
STFS_INLINE T load(const Byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// A binary16 moved into the place of a binary32's significand and exponent has an exponent that is
// too small by 112, subnormals included.
STFS_INLINE float half(const Byte* at) {
  const unsigned bits = load<std::uint16_t>(at);
  const std::uint32_t magnitude = (bits & 0x7FFFU) << 13;
  std::uint32_t value = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  if (magnitude >= 0x0F800000U) value = magnitude | 0x7F800000U;  // infinity or NaN
  return std::bit_cast<float>(value | (bits & 0x8000U) << 16);
}

STFS_INLINE float as_float(int value) { return static_cast<float>(value); }
STFS_INLINE int bit(unsigned word, unsigned i) { return static_cast<int>(word >> i & 1U); }

// --- blocks of 32

// y[0..15] of the low nibbles of 16 bytes, y[16..31] of the high ones.
template <class ValueOf>
STFS_INLINE void nibbles(const Byte* __restrict qs, float* __restrict y, const ValueOf& value_of) {
  for (unsigned j = 0; j < 16; ++j) y[j] = value_of(qs[j] & 15, j);
  for (unsigned j = 0; j < 16; ++j) y[j + 16] = value_of(qs[j] >> 4, j + 16);
}

struct Q4_0 {
  static constexpr std::size_t kElements = 32, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    nibbles(b + 2, y, [d](int q, unsigned) { return as_float(q - 8) * d; });
  }
};

struct Q4_1 {
  static constexpr std::size_t kElements = 32, kBytes = 20;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float m = half(b + 2);
    nibbles(b + 4, y, [d, m](int q, unsigned) { return as_float(q) * d + m; });
  }
};

struct Q5_0 {
  static constexpr std::size_t kElements = 32, kBytes = 22;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const auto high = load<std::uint32_t>(b + 2);
    nibbles(b + 6, y,
            [d, high](int q, unsigned j) { return as_float((q | bit(high, j) << 4) - 16) * d; });
  }
};

struct Q5_1 {
  static constexpr std::size_t kElements = 32, kBytes = 24;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float m = half(b + 2);
    const auto high = load<std::uint32_t>(b + 4);
    nibbles(b + 8, y,
            [d, m, high](int q, unsigned j) { return as_float(q | bit(high, j) << 4) * d + m; });
  }
};

template <std::size_t Offset, unsigned Count>
STFS_INLINE void signed_bytes(float d, const Byte* __restrict b, float* __restrict y) {
  for (unsigned j = 0; j < Count; ++j) y[j] = as_float(static_cast<std::int8_t>(b[Offset + j])) * d;
}

struct Q8_0 {
  static constexpr std::size_t kElements = 32, kBytes = 34;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    signed_bytes<2, 32>(half(b), b, y);
  }
};

struct Q8_1 {  // bytes 2 and 3: d times the sum of the integers
  static constexpr std::size_t kElements = 32, kBytes = 36;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    signed_bytes<4, 32>(half(b), b, y);
  }
};

constexpr std::array<std::int8_t, 16> kIq4Values{-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of E2M1; the second zero is positive.
constexpr std::array<std::int8_t, 16> kE2M1Values{0, 1,  2,  3,  4,  6,  8,  12,
                                                  0, -1, -2, -3, -4, -6, -8, -12};

// y[j] of byte j's low nibble, y[j + Count] of the high one.
template <unsigned Count>
STFS_INLINE void looked_up(const std::array<std::int8_t, 16>& values, float d,
                           const Byte* __restrict qs, float* __restrict y) {
  for (unsigned j = 0; j < Count; ++j) y[j] = as_float(values[qs[j] & 15]) * d;
  for (unsigned j = 0; j < Count; ++j) y[j + Count] = as_float(values[qs[j] >> 4]) * d;
}

struct Iq4Nl {
  static constexpr std::size_t kElements = 32, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    looked_up<16>(kIq4Values, half(b), b + 2, y);
  }
};

struct Mxfp4 {
  static constexpr std::size_t kElements = 32, kBytes = 17;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    // Half of E8M0's value, 2^(e-128); unlike OCP's, 255 is no NaN.
    const std::uint32_t e = b[0];
    const auto d = std::bit_cast<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23);
    looked_up<16>(kE2M1Values, d, b + 1, y);
  }
};

// --- 64 and 128

struct Nvfp4 {
  static constexpr std::size_t kElements = 64, kBytes = 36;
  // Half of E4M3's value. 0x7F is 0; with bit 7 set, which is ignored else, it is 240.
  STFS_INLINE static float scale(unsigned x) {
    const unsigned exponent = x >> 3 & 15U;
    const auto significand = as_float(static_cast<int>(x & 7U));
    if (x == 0x7F) return 0;
    if (exponent == 0) return significand * 0x1p-10F;
    const auto power = std::bit_cast<float>((exponent + 127 - 7 - 1) << 23);
    return (1 + significand / 8) * power;
  }
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    for (unsigned s = 0; s < 4; ++s) {
      looked_up<8>(kE2M1Values, scale(b[s]), b + 4 + 8 * s, y + 16 * s);
    }
  }
};

struct Q2_0 {
  static constexpr std::size_t kElements = 64, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned j = 0; j < 64; ++j) y[j] = as_float((b[2 + j / 4] >> (2 * (j % 4)) & 3) - 1) * d;
  }
};

struct Q1_0 {
  static constexpr std::size_t kElements = 128, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned j = 0; j < 128; ++j) y[j] = bit(b[2 + j / 8], j % 8) != 0 ? d : -d;
  }
};

// --- 256, with scales for groups of 16 or 32

struct Q2_K {
  static constexpr std::size_t kElements = 256, kBytes = 84;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 80);
    const float dmin = half(b + 82);
    for (unsigned group = 0; group < 16; ++group) {
      const float scale = d * as_float(b[group] & 15);
      const float minimum = dmin * as_float(b[group] >> 4);
      const Byte* const qs = b + 16 + 32 * (group / 8) + 16 * (group % 2);
      const unsigned shift = 2 * (group % 8 / 2);
      float* const out = y + 16 * group;
      for (unsigned l = 0; l < 16; ++l) out[l] = scale * as_float(qs[l] >> shift & 3) - minimum;
    }
  }
};

struct Q3_K {
  static constexpr std::size_t kElements = 256, kBytes = 110;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 108);
    const Byte* const scales = b + 96;
    for (unsigned group = 0; group < 16; ++group) {
      const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
      const int high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
      const float scale = d * as_float((low | high << 4) - 32);
      const Byte* const qs = b + 32 + 32 * (group / 8) + 16 * (group % 2);
      const Byte* const hmask = b + 16 * (group % 2);
      const unsigned shift = 2 * (group % 8 / 2);
      float* const out = y + 16 * group;
      for (unsigned l = 0; l < 16; ++l) {
        const int q = (qs[l] >> shift & 3) - 4 + 4 * bit(hmask[l], group / 2);
        out[l] = scale * as_float(q);
      }
    }
  }
};

struct ScaleAndMinimum {
  int scale, minimum;
};

// The 6-bit scales and minimums of Q4_K and Q5_K in 12 bytes.
STFS_INLINE ScaleAndMinimum six_bits(const Byte* s, unsigned group) {
  if (group < 4) return {s[group] & 63, s[group + 4] & 63};
  return {(s[group + 4] & 15) | (s[group - 4] >> 6) << 4, (s[group + 4] >> 4) | (s[group] >> 6)
                                                                                    << 4};
}

struct Q4_K {
  static constexpr std::size_t kElements = 256, kBytes = 144;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float dmin = half(b + 2);
    for (unsigned group = 0; group < 8; ++group) {
      const ScaleAndMinimum of = six_bits(b + 4, group);
      const float scale = d * as_float(of.scale);
      const float minimum = dmin * as_float(of.minimum);
      const Byte* const qs = b + 16 + 32 * (group / 2);
      const unsigned shift = 4 * (group % 2);
      float* const out = y + 32 * group;
      for (unsigned l = 0; l < 32; ++l) out[l] = scale * as_float(qs[l] >> shift & 15) - minimum;
    }
  }
};

struct Q5_K {
  static constexpr std::size_t kElements = 256, kBytes = 176;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float dmin = half(b + 2);
    const Byte* const high = b + 16;
    for (unsigned group = 0; group < 8; ++group) {
      const ScaleAndMinimum of = six_bits(b + 4, group);
      const float scale = d * as_float(of.scale);
      const float minimum = dmin * as_float(of.minimum);
      const Byte* const qs = b + 48 + 32 * (group / 2);
      const unsigned shift = 4 * (group % 2);
      float* const out = y + 32 * group;
      for (unsigned l = 0; l < 32; ++l) {
        const int q = (qs[l] >> shift & 15) | bit(high[l], group) << 4;
        out[l] = scale * as_float(q) - minimum;
      }
    }
  }
};

struct Q6_K {
  static constexpr std::size_t kElements = 256, kBytes = 210;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 208);
    for (unsigned group = 0; group < 16; ++group) {
      const unsigned n = group / 8;
      const unsigned k = group % 8 / 2;
      const unsigned at = 16 * (group % 2);
      const float scale = d * as_float(static_cast<std::int8_t>(b[192 + group]));
      const Byte* const low = b + 64 * n + 32 * (k & 1U) + at;
      const Byte* const high = b + 128 + 32 * n + at;
      const unsigned shift = 4 * (k / 2);
      float* const out = y + 16 * group;
      for (unsigned l = 0; l < 16; ++l) {
        const int q = ((low[l] >> shift & 15) | (high[l] >> (2 * k) & 3) << 4) - 32;
        out[l] = scale * as_float(q);
      }
    }
  }
};

struct Q8_K {  // bytes 260 to 291: sums of the integers
  static constexpr std::size_t kElements = 256, kBytes = 292;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    signed_bytes<4, 256>(load<float>(b), b, y);
  }
};

struct Iq4Xs {
  static constexpr std::size_t kElements = 256, kBytes = 136;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const unsigned high = load<std::uint16_t>(b + 2);
    for (unsigned group = 0; group < 8; ++group) {
      const int low = b[4 + group / 2] >> (4 * (group % 2)) & 15;
      const int scale = low | static_cast<int>(high >> (2 * group) & 3U) << 4;
      looked_up<16>(kIq4Values, d * as_float(scale - 32), b + 8 + 16 * group, y + 32 * group);
    }
  }
};

// --- ternary

struct Tq1_0 {
  static constexpr std::size_t kElements = 256, kBytes = 54;
  // Five digits of base 3 are one byte, as a fraction of 256: digit n of `v`, less one, times d.
  STFS_INLINE static float digit(unsigned v, unsigned power, float d) {
    return as_float(static_cast<int>((v * power & 255U) * 3 >> 8) - 1) * d;
  }
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    constexpr std::array<unsigned, 5> kPowers{1, 3, 9, 27, 81};
    const float d = half(b + 52);
    for (unsigned n = 0; n < 5; ++n) {
      for (unsigned l = 0; l < 32; ++l) y[32 * n + l] = digit(b[l], kPowers[n], d);
      for (unsigned l = 0; l < 16; ++l) y[160 + 16 * n + l] = digit(b[32 + l], kPowers[n], d);
    }
    for (unsigned n = 0; n < 4; ++n) {
      for (unsigned l = 0; l < 4; ++l) y[240 + 4 * n + l] = digit(b[48 + l], kPowers[n], d);
    }
  }
};

struct Tq2_0 {
  static constexpr std::size_t kElements = 256, kBytes = 66;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 64);
    for (unsigned group = 0; group < 8; ++group) {
      const Byte* const qs = b + 32 * (group / 4);
      const unsigned shift = 2 * (group % 4);
      for (unsigned l = 0; l < 32; ++l) y[32 * group + l] = as_float((qs[l] >> shift & 3) - 1) * d;
    }
  }
};

// --- codebooks. A group is 32 elements; `l` counts its parts of 8.

// The signs of 8 values in 7 bits: the eighth makes their number even.
STFS_INLINE unsigned even_signs(unsigned bits) {
  bits &= 127U;
  return bits | (static_cast<unsigned>(std::popcount(bits)) & 1U) << 7;
}

// Element j is negative where bit j of `signs` is set. `half_row` holds elements 4 to 7.
STFS_INLINE void signed_rows(float d, const std::int8_t* __restrict row,
                             const std::int8_t* __restrict half_row, unsigned signs,
                             float* __restrict y) {
  for (unsigned j = 0; j < 4; ++j) y[j] = d * as_float(row[j] * (1 - 2 * bit(signs, j)));
  for (unsigned j = 0; j < 4; ++j) {
    y[4 + j] = d * as_float(half_row[j] * (1 - 2 * bit(signs, 4 + j)));
  }
}
STFS_INLINE void signed_row(float d, const std::array<std::int8_t, 8>& row, unsigned signs,
                            float* __restrict y) {
  signed_rows(d, row.data(), row.data() + 4, signs, y);
}

struct Iq2Xxs {
  static constexpr std::size_t kElements = 256, kBytes = 66;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned group = 0; group < 8; ++group) {
      const Byte* const rows = b + 2 + 8 * group;
      const auto word = load<std::uint32_t>(rows + 4);
      const float scale = d * (0.5F + as_float(static_cast<int>(word >> 28))) * 0.25F;
      for (unsigned l = 0; l < 4; ++l) {
        signed_row(scale, kIq2Xxs[rows[l]], even_signs(word >> (7 * l)), y + 32 * group + 8 * l);
      }
    }
  }
};

// The scale of part `l` of a group: a nibble for each two parts.
STFS_INLINE float iq2_scale(float d, unsigned scales, unsigned l) {
  return d * (0.5F + as_float(static_cast<int>(l < 2 ? scales & 15U : scales >> 4))) * 0.25F;
}

struct Iq2Xs {
  static constexpr std::size_t kElements = 256, kBytes = 74;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned part = 0; part < 32; ++part) {
      const unsigned q = load<std::uint16_t>(b + 2 + 2 * part);
      const float scale = iq2_scale(d, b[66 + part / 4], part % 4);
      signed_row(scale, kIq2Xs[q & 511U], even_signs(q >> 9), y + 8 * part);
    }
  }
};

struct Iq2S {
  static constexpr std::size_t kElements = 256, kBytes = 82;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned part = 0; part < 32; ++part) {
      const unsigned high = b[66 + part / 4] >> (2 * (part % 4)) & 3U;
      const float scale = iq2_scale(d, b[74 + part / 4], part % 4);
      signed_row(scale, kIq2S[b[2 + part] | high << 8], b[34 + part], y + 8 * part);
    }
  }
};

struct Iq3Xxs {
  static constexpr std::size_t kElements = 256, kBytes = 98;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned group = 0; group < 8; ++group) {
      const Byte* const rows = b + 2 + 8 * group;
      const auto word = load<std::uint32_t>(b + 66 + 4 * group);
      const float scale = d * (0.5F + as_float(static_cast<int>(word >> 28))) * 0.5F;
      for (unsigned l = 0; l < 4; ++l) {
        signed_rows(scale, kIq3Xxs[rows[2 * l]].data(), kIq3Xxs[rows[2 * l + 1]].data(),
                    even_signs(word >> (7 * l)), y + 32 * group + 8 * l);
      }
    }
  }
};

struct Iq3S {
  static constexpr std::size_t kElements = 256, kBytes = 110;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned group = 0; group < 8; ++group) {
      const int nibble = b[106 + group / 2] >> (4 * (group % 2)) & 15;
      const float scale = d * as_float(1 + 2 * nibble);
      const Byte* const rows = b + 2 + 8 * group;
      const unsigned high = b[66 + group];
      for (unsigned l = 0; l < 4; ++l) {
        const unsigned first = rows[2 * l] | (high >> (2 * l) & 1U) << 8;
        const unsigned second = rows[2 * l + 1] | (high >> (2 * l + 1) & 1U) << 8;
        signed_rows(scale, kIq3S[first].data(), kIq3S[second].data(), b[74 + 4 * group + l],
                    y + 32 * group + 8 * l);
      }
    }
  }
};

STFS_INLINE void moved_row(float scale, float delta, const std::array<std::int8_t, 8>& row,
                           float* __restrict y) {
  for (unsigned j = 0; j < 8; ++j) y[j] = scale * (as_float(row[j]) + delta);
}
constexpr float kIq1Delta = 0.125F;

struct Iq1S {
  static constexpr std::size_t kElements = 256, kBytes = 50;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (unsigned group = 0; group < 8; ++group) {
      const unsigned high = load<std::uint16_t>(b + 34 + 2 * group);
      const float scale = d * as_float(static_cast<int>(2 * (high >> 12 & 7U) + 1));
      const float delta = (high & 0x8000U) != 0 ? -kIq1Delta : kIq1Delta;
      for (unsigned l = 0; l < 4; ++l) {
        const unsigned row = b[2 + 4 * group + l] | (high >> (3 * l) & 7U) << 8;
        moved_row(scale, delta, kIq1[row], y + 32 * group + 8 * l);
      }
    }
  }
};

struct Iq1M {
  static constexpr std::size_t kElements = 256, kBytes = 56;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    // Each of four words has 4 bits of d and four scales of 3 bits.
    const auto word = [b](unsigned i) -> unsigned { return load<std::uint16_t>(b + 48 + 2 * i); };
    unsigned bits = 0;
    for (unsigned i = 0; i < 4; ++i) bits |= (word(i) >> 12) << (4 * i);
    const auto bytes = std::bit_cast<std::array<Byte, 2>>(static_cast<std::uint16_t>(bits));
    const float d = half(bytes.data());
    for (unsigned part = 0; part < 32; ++part) {
      const unsigned group = part / 4;
      const unsigned l = part % 4;
      const unsigned three = word(group / 2) >> (6 * (group % 2) + 3 * (l / 2)) & 7U;
      const float scale = d * as_float(static_cast<int>(2 * three + 1));
      const unsigned nibble = b[32 + part / 2] >> (4 * (l % 2)) & 15U;
      const float delta = (nibble & 8U) != 0 ? -kIq1Delta : kIq1Delta;
      moved_row(scale, delta, kIq1[b[part] | (nibble & 7U) << 8], y + 8 * part);
    }
  }
};

// --- one copy of each decoder for each set of instructions

template <class Block>
STFS_INLINE void decode_all(const std::byte* in, std::size_t elements, float* out) {
  const auto* b = reinterpret_cast<const Byte*>(in);
  for (std::size_t i = 0; i < elements; i += Block::kElements) {
    Block::decode(b, out + i);
    b += Block::kBytes;
  }
}

template <class Block>
void decode_baseline(const std::byte* in, std::size_t elements, float* out) {
  decode_all<Block>(in, elements, out);
}
#if defined(__x86_64__)
template <class Block>
[[gnu::target("avx2")]] void decode_avx2(const std::byte* in, std::size_t elements, float* out) {
  decode_all<Block>(in, elements, out);
}
template <class Block>
[[gnu::target("avx2,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void
decode_avx512(const std::byte* in, std::size_t elements, float* out) {
  decode_all<Block>(in, elements, out);
}
#endif

template <class Block>
constexpr BlockDecoder* decoder(Vectors vectors) {
#if defined(__x86_64__)
  if (vectors == Vectors::kAvx512) return decode_avx512<Block>;
  if (vectors == Vectors::kAvx2) return decode_avx2<Block>;
#endif
  static_cast<void>(vectors);
  return decode_baseline<Block>;
}

template <class Block>
void decode(const std::byte* in, std::size_t elements, float* out) {
  static BlockDecoder* const best = decoder<Block>(processor_vectors());
  best(in, elements, out);
}

}  // namespace

Vectors processor_vectors() {
#if defined(__x86_64__)
  const bool has_avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (has_avx512) return Vectors::kAvx512;
  if (__builtin_cpu_supports("avx2") != 0) return Vectors::kAvx2;
#endif
  return Vectors::kBaseline;
}

// clang-format off
#define STFS_BLOCKS(ROW)                                                                        \
  ROW(2, Q4_0, q4_0) ROW(3, Q4_1, q4_1) ROW(6, Q5_0, q5_0) ROW(7, Q5_1, q5_1)                    \
  ROW(8, Q8_0, q8_0) ROW(9, Q8_1, q8_1) ROW(10, Q2_K, q2_k) ROW(11, Q3_K, q3_k)                  \
  ROW(12, Q4_K, q4_k) ROW(13, Q5_K, q5_k) ROW(14, Q6_K, q6_k) ROW(15, Q8_K, q8_k)                \
  ROW(16, Iq2Xxs, iq2_xxs) ROW(17, Iq2Xs, iq2_xs) ROW(18, Iq3Xxs, iq3_xxs)                       \
  ROW(19, Iq1S, iq1_s) ROW(20, Iq4Nl, iq4_nl) ROW(21, Iq3S, iq3_s) ROW(22, Iq2S, iq2_s)          \
  ROW(23, Iq4Xs, iq4_xs) ROW(29, Iq1M, iq1_m) ROW(34, Tq1_0, tq1_0) ROW(35, Tq2_0, tq2_0)        \
  ROW(39, Mxfp4, mxfp4) ROW(40, Nvfp4, nvfp4) ROW(41, Q1_0, q1_0) ROW(42, Q2_0, q2_0)
// clang-format on

#define STFS_FUNCTION(number, Block, name)                                        \
  void name##_to_f32(const std::byte* blocks, std::size_t elements, float* out) { \
    decode<Block>(blocks, elements, out);                                         \
  }
STFS_BLOCKS(STFS_FUNCTION)

BlockDecoder* block_decoder(unsigned gguf, Vectors vectors) {
  switch (gguf) {
#define STFS_CASE(number, Block, name) \
  case number:                         \
    return decoder<Block>(vectors);
    STFS_BLOCKS(STFS_CASE)
    default:
      return nullptr;
  }
}

}  // namespace stfs
