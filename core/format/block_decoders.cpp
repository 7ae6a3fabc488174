#include "core/format/block_decoders.h"

#include "core/base/vectors.h"
#include "core/format/codebooks.h"
#include "core/format/ieee.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

// Highway compiles this file once for each set of instructions and chooses one when the program
// runs. The decoders of the most used types are written with vectors. The others are plain loops,
// which the compiler vectorises (docs/decisions/0017-decoders.md has figures).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/format/block_decoders.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#undef STFS_INLINE
#define STFS_INLINE [[gnu::always_inline]] inline

HWY_BEFORE_NAMESPACE();
namespace stfs::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Byte = unsigned char;

template <class T>
STFS_INLINE T load(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// When the bits of a binary16 are moved to the significand and exponent of a binary32, the exponent
// is too small by 112, even for a subnormal number. A multiplication by 2^112 corrects it.
STFS_INLINE float half(const Byte* at) {
  const unsigned bits = load<std::uint16_t>(at);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // with F16C
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
#else
  const std::uint32_t magnitude = (bits & 0x7FFFU) << 13;
  auto value = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  if (magnitude >= 0x0F800000U) value = magnitude | 0x7F800000U;  // infinity or NaN
  return std::bit_cast<float>(value | (bits & 0x8000U) << 16);
#endif
}

STFS_INLINE float as_float(int value) { return static_cast<float>(value); }

// --- vectors

using Floats = hn::CappedTag<float, 16>;  // 1 to 16 lanes, a power of two
using Integers = hn::Rebind<std::int32_t, Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;
using SignedBytes = hn::Rebind<std::int8_t, Floats>;

// y[j] = scale * q[j] for `count` integers, a multiple of 16.
STFS_INLINE void multiply(const std::int8_t* __restrict q, std::size_t count, float scale,
                          float* __restrict y) {
  const Floats floats;
  const auto factor = hn::Set(floats, scale);
  for (std::size_t j = 0; j < count; j += hn::Lanes(floats)) {
    const auto wide = hn::PromoteTo(Integers(), hn::LoadU(SignedBytes(), q + j));
    hn::StoreU(hn::Mul(factor, hn::ConvertTo(floats, wide)), floats, y + j);
  }
}

// y[j] = scale * q[j] + minimum
STFS_INLINE void multiply(const std::int8_t* __restrict q, std::size_t count, float scale,
                          float minimum, float* __restrict y) {
  const Floats floats;
  const auto factor = hn::Set(floats, scale);
  const auto least = hn::Set(floats, minimum);
  for (std::size_t j = 0; j < count; j += hn::Lanes(floats)) {
    const auto wide = hn::PromoteTo(Integers(), hn::LoadU(SignedBytes(), q + j));
    hn::StoreU(hn::Add(hn::Mul(factor, hn::ConvertTo(floats, wide)), least), floats, y + j);
  }
}

constexpr std::array<std::uint64_t, 256> bytes_of_bits() {
  std::array<std::uint64_t, 256> masks{};
  for (std::size_t byte = 0; byte < masks.size(); ++byte) {
    for (std::size_t j = 0; j < 8; ++j) {
      if ((byte >> j & 1U) != 0) masks[byte] |= std::uint64_t{0xFF} << (8 * j);
    }
  }
  return masks;
}
// For each byte, eight bytes: 0xFF for a bit that is set, else 0.
constexpr auto kSet = bytes_of_bits();

// Vectors for eight signed 8-bit integers in a word, the first in the lowest byte.
using Eight = hn::CappedTag<float, 8>;
STFS_INLINE auto as_floats(const std::int8_t* q) {
  const auto narrow = hn::LoadU(hn::Rebind<std::int8_t, Eight>(), q);
  return hn::ConvertTo(Eight(), hn::PromoteTo(hn::Rebind<std::int32_t, Eight>(), narrow));
}
// y[j] = scale * q[j] + minimum
STFS_INLINE void eight(float scale, std::uint64_t word, float minimum, float* __restrict y) {
  alignas(8) std::int8_t q[8];
  std::memcpy(q, &word, sizeof q);
  const Eight floats;
  for (std::size_t j = 0; j < 8; j += hn::Lanes(floats)) {
    const auto product = hn::Mul(hn::Set(floats, scale), as_floats(q + j));
    hn::StoreU(hn::Add(product, hn::Set(floats, minimum)), floats, y + j);
  }
}
STFS_INLINE void eight(float scale, std::uint64_t word, float* __restrict y) {
  alignas(8) std::int8_t q[8];
  std::memcpy(q, &word, sizeof q);
  const Eight floats;
  for (std::size_t j = 0; j < 8; j += hn::Lanes(floats)) {
    hn::StoreU(hn::Mul(hn::Set(floats, scale), as_floats(q + j)), floats, y + j);
  }
}
constexpr std::uint64_t kOnes = 0x0101010101010101;  // times a byte gives that byte eight times

constexpr std::array<std::int8_t, 16> kNibbles{0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::array<std::int8_t, 16> kQ4Values{-8, -7, -6, -5, -4, -3, -2, -1,
                                                0,  1,  2,  3,  4,  5,  6,  7};
constexpr std::array<std::int8_t, 16> kIq4Values{-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of E2M1. The second zero is positive here too.
constexpr std::array<std::int8_t, 16> kE2M1Values{0, 1,  2,  3,  4,  6,  8,  12,
                                                  0, -1, -2, -3, -4, -6, -8, -12};

// Looks up the values of the low and the high nibbles of 16 bytes.
STFS_INLINE void look_up(const std::array<std::int8_t, 16>& values, const Byte* __restrict qs,
                         std::int8_t* __restrict low, std::int8_t* __restrict high) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t j = 0; j < 16; ++j) low[j] = values[qs[j] & 15];
  for (std::size_t j = 0; j < 16; ++j) high[j] = values[qs[j] >> 4];
#else
  const hn::Full128<std::uint8_t> bytes;
  const hn::Full128<std::int8_t> signed_bytes;
  const auto table = hn::LoadU(signed_bytes, values.data());
  const auto both = hn::LoadU(bytes, qs);
  const auto at = [&](auto numbers) HWY_ATTR {
    return hn::TableLookupBytes(table, hn::BitCast(signed_bytes, numbers));
  };
  hn::Store(at(hn::And(both, hn::Set(bytes, 15))), signed_bytes, low);
  hn::Store(at(hn::ShiftRight<4>(both)), signed_bytes, high);
#endif
}

// Decodes 16 bytes: the low nibbles to y[0..15], the high nibbles to y[16..31].
STFS_INLINE void looked_up(const std::array<std::int8_t, 16>& values, float d,
                           const Byte* __restrict qs, float* __restrict y) {
  alignas(16) std::int8_t low[16];
  alignas(16) std::int8_t high[16];
  look_up(values, qs, low, high);
  multiply(low, 16, d, y);
  multiply(high, 16, d, y + 16);
}

// --- blocks of 32

struct Q40 {
  static constexpr std::size_t kElements = 32, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    looked_up(kQ4Values, half(b), b + 2, y);
  }
};

struct Q41 {
  static constexpr std::size_t kElements = 32, kBytes = 20;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float m = half(b + 2);
    alignas(16) std::int8_t low[16];
    alignas(16) std::int8_t high[16];
    look_up(kNibbles, b + 4, low, high);
    multiply(low, 16, d, m, y);
    multiply(high, 16, d, m, y + 16);
  }
};

struct Q50 {
  static constexpr std::size_t kElements = 32, kBytes = 22;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t k = 0; k < 2; ++k) {
      const auto both = load<std::uint64_t>(b + 6 + 8 * k);
      // Subtracts 16: if the fifth bit is 0, the upper nibble of the byte becomes 15, else 0.
      const std::uint64_t low = both & 15 * kOnes;
      const std::uint64_t high = both >> 4 & 15 * kOnes;
      eight(d, low | (~kSet[b[2 + k]] & 0xF0 * kOnes), y + 8 * k);
      eight(d, high | (~kSet[b[4 + k]] & 0xF0 * kOnes), y + 16 + 8 * k);
    }
  }
};

struct Q51 {
  static constexpr std::size_t kElements = 32, kBytes = 24;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float m = half(b + 2);
    for (std::size_t k = 0; k < 2; ++k) {
      const auto both = load<std::uint64_t>(b + 8 + 8 * k);
      eight(d, (both & 15 * kOnes) | (kSet[b[4 + k]] & 16 * kOnes), m, y + 8 * k);
      eight(d, (both >> 4 & 15 * kOnes) | (kSet[b[6 + k]] & 16 * kOnes), m, y + 16 + 8 * k);
    }
  }
};

STFS_INLINE const std::int8_t* as_signed(const Byte* bytes) {
  return reinterpret_cast<const std::int8_t*>(bytes);
}

struct Q80 {
  static constexpr std::size_t kElements = 32, kBytes = 34;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    multiply(as_signed(b + 2), 32, half(b), y);
  }
};

struct Q81 {  // bytes 2 and 3: d times the sum of the integers
  static constexpr std::size_t kElements = 32, kBytes = 36;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    multiply(as_signed(b + 4), 32, half(b), y);
  }
};

struct Iq4Nl {
  static constexpr std::size_t kElements = 32, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    looked_up(kIq4Values, half(b), b + 2, y);
  }
};

struct Mxfp4 {
  static constexpr std::size_t kElements = 32, kBytes = 17;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    // Half of E8M0's value, 2^(e-128). Unlike in OCP's definition, 255 is not a NaN.
    const std::uint32_t e = b[0];
    const auto d = std::bit_cast<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23);
    looked_up(kE2M1Values, d, b + 1, y);
  }
};

// --- blocks of 64 and 128

struct Nvfp4 {
  static constexpr std::size_t kElements = 64, kBytes = 36;
  // Half of E4M3's value. Bit 7 is ignored, except that 0x7F gives 0 but 0xFF gives 240.
  STFS_INLINE static float scale(unsigned x) {
    const unsigned exponent = x >> 3 & 15U;
    const auto significand = as_float(static_cast<int>(x & 7U));
    if (x == 0x7F) return 0;
    if (exponent == 0) return significand * 0x1p-10F;
    const auto power = std::bit_cast<float>((exponent + 127 - 7 - 1) << 23);
    return (1 + significand / 8) * power;
  }
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    for (std::size_t pair = 0; pair < 2; ++pair) {
      alignas(16) std::int8_t low[16];
      alignas(16) std::int8_t high[16];
      look_up(kE2M1Values, b + 4 + 16 * pair, low, high);
      for (std::size_t s = 0; s < 2; ++s) {
        const float d = scale(b[2 * pair + s]);
        float* const out = y + 32 * pair + 16 * s;
        eight(d, load<std::uint64_t>(low + 8 * s), out);
        eight(d, load<std::uint64_t>(high + 8 * s), out + 8);
      }
    }
  }
};

constexpr std::array<std::uint32_t, 256> bytes_of_pairs() {
  std::array<std::uint32_t, 256> pairs{};
  for (std::uint32_t byte = 0; byte < pairs.size(); ++byte) {
    for (unsigned j = 0; j < 4; ++j) pairs[byte] |= (((byte >> (2 * j) & 3) - 1) & 255) << (8 * j);
  }
  return pairs;
}
// For each byte, four bytes: the values of its pairs of bits, minus one.
constexpr auto kPairs = bytes_of_pairs();

struct Q20 {
  static constexpr std::size_t kElements = 64, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t j = 0; j < 16; j += 2) {
      eight(d, kPairs[b[2 + j]] | std::uint64_t{kPairs[b[3 + j]]} << 32, y + 4 * j);
    }
  }
};

struct Q10 {
  static constexpr std::size_t kElements = 128, kBytes = 18;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t j = 0; j < 16; ++j) eight(d, ~kSet[b[2 + j]] | kOnes, y + 8 * j);  // 1 or -1
  }
};

// --- blocks of 256, with scales for groups of 16 or 32

struct Q2K {
  static constexpr std::size_t kElements = 256, kBytes = 84;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 80);
    const float dmin = half(b + 82);
    for (std::size_t group = 0; group < 16; ++group) {
      const float scale = d * as_float(b[group] & 15);
      const float minimum = dmin * as_float(b[group] >> 4);
      const Byte* const qs = b + 16 + 32 * (group / 8) + 16 * (group % 2);
      const std::size_t shift = 2 * (group % 8 / 2);
      float* const out = y + 16 * group;
      for (std::size_t l = 0; l < 16; ++l) out[l] = scale * as_float(qs[l] >> shift & 3) - minimum;
    }
  }
};

struct Q3K {
  static constexpr std::size_t kElements = 256, kBytes = 110;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 108);
    const Byte* const scales = b + 96;
    for (std::size_t group = 0; group < 16; ++group) {
      const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
      const int high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
      const float scale = d * as_float((low | high << 4) - 32);
      const Byte* const qs = b + 32 + 32 * (group / 8) + 16 * (group % 2);
      const Byte* const hmask = b + 16 * (group % 2);
      const std::size_t shift = 2 * (group % 8 / 2);
      for (std::size_t l = 0; l < 16; l += 8) {
        const std::uint64_t two = load<std::uint64_t>(qs + l) >> shift & 3 * kOnes;
        const std::uint64_t third = load<std::uint64_t>(hmask + l) >> (group / 2) & kOnes;
        // Subtracts 4 if the third bit is 0.
        eight(scale, two | (third ^ kOnes) * 0xFC, y + 16 * group + l);
      }
    }
  }
};

struct ScaleAndMinimum {
  int scale, minimum;
};

// Returns the 6-bit scale and minimum of a group of Q4_K or Q5_K, from the 12 bytes `s`.
STFS_INLINE ScaleAndMinimum six_bits(const Byte* s, std::size_t group) {
  if (group < 4) return {s[group] & 63, s[group + 4] & 63};
  return {(s[group + 4] & 15) | (s[group - 4] >> 6) << 4, (s[group + 4] >> 4) | (s[group] >> 6)
                                                                                    << 4};
}

// Decodes two groups of Q4_K or Q5_K. Q5_K has a fifth bit of each integer in `high`.
template <bool HasHigh>
STFS_INLINE void two_groups(float d, float dmin, const Byte* __restrict scales, std::size_t pair,
                            const Byte* __restrict high, const Byte* __restrict qs,
                            float* __restrict y) {
  const Floats floats;
  const Bytes bytes;
  const Integers integers;
  const ScaleAndMinimum even = six_bits(scales, 2 * pair);
  const ScaleAndMinimum odd = six_bits(scales, 2 * pair + 1);
  const auto even_scale = hn::Set(floats, d * as_float(even.scale));
  const auto even_minimum = hn::Set(floats, dmin * as_float(even.minimum));
  const auto odd_scale = hn::Set(floats, d * as_float(odd.scale));
  const auto odd_minimum = hn::Set(floats, dmin * as_float(odd.minimum));
  const auto sixteen = hn::Set(bytes, 16);
  const auto even_bit = hn::Set(bytes, static_cast<Byte>(1U << (2 * pair)));
  const auto odd_bit = hn::Set(bytes, static_cast<Byte>(2U << (2 * pair)));
  for (std::size_t l = 0; l < 32; l += hn::Lanes(floats)) {
    const auto both = hn::LoadU(bytes, qs + l);
    auto low = hn::And(both, hn::Set(bytes, 15));
    auto up = hn::ShiftRight<4>(both);
    if constexpr (HasHigh) {
      const auto bits = hn::LoadU(bytes, high + l);
      low = hn::Or(low, hn::IfThenElseZero(hn::TestBit(bits, even_bit), sixteen));
      up = hn::Or(up, hn::IfThenElseZero(hn::TestBit(bits, odd_bit), sixteen));
    }
    const auto even_q = hn::ConvertTo(floats, hn::PromoteTo(integers, low));
    const auto odd_q = hn::ConvertTo(floats, hn::PromoteTo(integers, up));
    hn::StoreU(hn::Sub(hn::Mul(even_scale, even_q), even_minimum), floats, y + l);
    hn::StoreU(hn::Sub(hn::Mul(odd_scale, odd_q), odd_minimum), floats, y + 32 + l);
  }
}

struct Q4K {
  static constexpr std::size_t kElements = 256, kBytes = 144;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float dmin = half(b + 2);
    for (std::size_t pair = 0; pair < 4; ++pair) {
      two_groups<false>(d, dmin, b + 4, pair, nullptr, b + 16 + 32 * pair, y + 64 * pair);
    }
  }
};

struct Q5K {
  static constexpr std::size_t kElements = 256, kBytes = 176;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const float dmin = half(b + 2);
    for (std::size_t pair = 0; pair < 4; ++pair) {
      two_groups<true>(d, dmin, b + 4, pair, b + 16, b + 48 + 32 * pair, y + 64 * pair);
    }
  }
};

struct Q6K {
  static constexpr std::size_t kElements = 256, kBytes = 210;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const Floats floats;
    const Bytes bytes;
    const auto fifteen = hn::Set(bytes, 15);
    const auto top = hn::Set(bytes, 48);  // the two high bits of an integer
    const float d = half(b + 208);
    for (std::size_t part = 0; part < 4; ++part) {  // 16 elements of each of four groups of 32
      const std::size_t n = part / 2;
      const std::size_t at = 16 * (part % 2);
      const Byte* const low = b + 64 * n + at;
      const Byte* const high = b + 128 + 32 * n + at;
      const std::int8_t* const scales = as_signed(b + 192 + 8 * n + part % 2);
      const auto put = [&](auto nibble, auto bits, std::size_t k, std::size_t l) HWY_ATTR {
        const auto q = hn::PromoteTo(Integers(), hn::Or(nibble, hn::And(bits, top)));
        const auto value = hn::ConvertTo(floats, hn::Sub(q, hn::Set(Integers(), 32)));
        const auto scale = hn::Set(floats, d * as_float(scales[2 * k]));
        hn::StoreU(hn::Mul(scale, value), floats, y + 128 * n + 32 * k + at + l);
      };
      for (std::size_t l = 0; l < 16; l += hn::Lanes(floats)) {
        const auto first = hn::LoadU(bytes, low + l);
        const auto second = hn::LoadU(bytes, low + 32 + l);
        const auto bits = hn::LoadU(bytes, high + l);
        put(hn::And(first, fifteen), hn::ShiftLeft<4>(bits), 0, l);
        put(hn::And(second, fifteen), hn::ShiftLeft<2>(bits), 1, l);
        put(hn::ShiftRight<4>(first), bits, 2, l);
        put(hn::ShiftRight<4>(second), hn::ShiftRight<2>(bits), 3, l);
      }
    }
  }
};

struct Q8K {  // bytes 260 to 291: sums of the integers
  static constexpr std::size_t kElements = 256, kBytes = 292;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    multiply(as_signed(b + 4), 256, load<float>(b), y);
  }
};

struct Iq4Xs {
  static constexpr std::size_t kElements = 256, kBytes = 136;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    const unsigned high = load<std::uint16_t>(b + 2);
    for (std::size_t group = 0; group < 8; ++group) {
      const int low = b[4 + group / 2] >> (4 * (group % 2)) & 15;
      const int scale = low | static_cast<int>(high >> (2 * group) & 3U) << 4;
      looked_up(kIq4Values, d * as_float(scale - 32), b + 8 + 16 * group, y + 32 * group);
    }
  }
};

// --- ternary

struct Tq10 {
  static constexpr std::size_t kElements = 256, kBytes = 54;
  // A byte holds five digits of base 3, as a fraction of 256. Returns digit n of `v` minus one,
  // times d, where `power` is 3^n.
  STFS_INLINE static float digit(unsigned v, unsigned power, float d) {
    return as_float(static_cast<int>((v * power & 255U) * 3 >> 8) - 1) * d;
  }
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    constexpr std::array<unsigned, 5> kPowers{1, 3, 9, 27, 81};
    const float d = half(b + 52);
    for (std::size_t n = 0; n < 5; ++n) {
      for (std::size_t l = 0; l < 32; ++l) y[32 * n + l] = digit(b[l], kPowers[n], d);
      for (std::size_t l = 0; l < 16; ++l) y[160 + 16 * n + l] = digit(b[32 + l], kPowers[n], d);
    }
    for (std::size_t n = 0; n < 4; ++n) {
      for (std::size_t l = 0; l < 4; ++l) y[240 + 4 * n + l] = digit(b[48 + l], kPowers[n], d);
    }
  }
};

struct Tq20 {
  static constexpr std::size_t kElements = 256, kBytes = 66;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b + 64);
    for (std::size_t group = 0; group < 8; ++group) {
      const Byte* const qs = b + 32 * (group / 4);
      const std::size_t shift = 2 * (group % 4);
      for (std::size_t l = 0; l < 32; ++l)
        y[32 * group + l] = as_float((qs[l] >> shift & 3) - 1) * d;
    }
  }
};

// --- codebooks. A group is 32 elements; `l` counts its parts of 8.

// Returns the signs of 8 values, which are stored in 7 bits: the eighth sign is such that the
// number of set bits is even.
STFS_INLINE unsigned even_signs(unsigned bits) {
  bits &= 127U;
  // The parity of the 7 bits: bit number (low nibble xor high nibble) of this word.
  const unsigned odd = 0x6996U >> ((bits ^ bits >> 4) & 15U) & 1U;
  return bits | odd << 7;
}

// y[j] = d * row[j], negated if bit j of `signs` is set. Negates all bytes of the word at once: the
// complement plus 1 never carries into the next byte, because no value of a row is 0.
STFS_INLINE void signed_row(float d, std::uint64_t row, unsigned signs, float* __restrict y) {
  const std::uint64_t negative = kSet[signs];
  eight(d, (row ^ negative) + (negative & kOnes), y);
}
STFS_INLINE void signed_row(float d, const std::array<std::int8_t, 8>& row, unsigned signs,
                            float* __restrict y) {
  signed_row(d, std::bit_cast<std::uint64_t>(row), signs, y);
}
STFS_INLINE void signed_rows(float d, const std::array<std::int8_t, 4>& first,
                             const std::array<std::int8_t, 4>& second, unsigned signs,
                             float* __restrict y) {
  const std::uint64_t row = std::bit_cast<std::uint32_t>(first) |
                            std::uint64_t{std::bit_cast<std::uint32_t>(second)} << 32;
  signed_row(d, row, signs, y);
}

struct Iq2Xxs {
  static constexpr std::size_t kElements = 256, kBytes = 66;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t group = 0; group < 8; ++group) {
      const Byte* const rows = b + 2 + 8 * group;
      const auto word = load<std::uint32_t>(rows + 4);
      const float scale = d * (0.5F + as_float(static_cast<int>(word >> 28))) * 0.25F;
      for (std::size_t l = 0; l < 4; ++l) {
        signed_row(scale, kIq2Xxs[rows[l]], even_signs(word >> (7 * l)), y + 32 * group + 8 * l);
      }
    }
  }
};

// Returns the scale of part `l` of a group. There is one nibble per two parts.
STFS_INLINE float iq2_scale(float d, unsigned scales, std::size_t l) {
  return d * (0.5F + as_float(static_cast<int>(l < 2 ? scales & 15U : scales >> 4))) * 0.25F;
}

struct Iq2Xs {
  static constexpr std::size_t kElements = 256, kBytes = 74;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t part = 0; part < 32; ++part) {
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
    for (std::size_t part = 0; part < 32; ++part) {
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
    for (std::size_t group = 0; group < 8; ++group) {
      const Byte* const rows = b + 2 + 8 * group;
      const auto word = load<std::uint32_t>(b + 66 + 4 * group);
      const float scale = d * (0.5F + as_float(static_cast<int>(word >> 28))) * 0.5F;
      for (std::size_t l = 0; l < 4; ++l) {
        signed_rows(scale, kIq3Xxs[rows[2 * l]], kIq3Xxs[rows[2 * l + 1]],
                    even_signs(word >> (7 * l)), y + 32 * group + 8 * l);
      }
    }
  }
};

struct Iq3S {
  static constexpr std::size_t kElements = 256, kBytes = 110;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t group = 0; group < 8; ++group) {
      const int nibble = b[106 + group / 2] >> (4 * (group % 2)) & 15;
      const float scale = d * as_float(1 + 2 * nibble);
      const Byte* const rows = b + 2 + 8 * group;
      const unsigned high = b[66 + group];
      for (std::size_t l = 0; l < 4; ++l) {
        const unsigned first = rows[2 * l] | (high >> (2 * l) & 1U) << 8;
        const unsigned second = rows[2 * l + 1] | (high >> (2 * l + 1) & 1U) << 8;
        signed_rows(scale, kIq3S[first], kIq3S[second], b[74 + 4 * group + l],
                    y + 32 * group + 8 * l);
      }
    }
  }
};

STFS_INLINE void moved_row(float scale, float delta, const std::array<std::int8_t, 8>& row,
                           float* __restrict y) {
  const Eight floats;
  for (std::size_t j = 0; j < 8; j += hn::Lanes(floats)) {
    const auto moved = hn::Add(as_floats(row.data() + j), hn::Set(floats, delta));
    hn::StoreU(hn::Mul(hn::Set(floats, scale), moved), floats, y + j);
  }
}
constexpr float kIq1Delta = 0.125F;

struct Iq1S {
  static constexpr std::size_t kElements = 256, kBytes = 50;
  STFS_INLINE static void decode(const Byte* __restrict b, float* __restrict y) {
    const float d = half(b);
    for (std::size_t group = 0; group < 8; ++group) {
      const unsigned high = load<std::uint16_t>(b + 34 + 2 * group);
      const float scale = d * as_float(static_cast<int>(2 * (high >> 12 & 7U) + 1));
      const float delta = (high & 0x8000U) != 0 ? -kIq1Delta : kIq1Delta;
      for (std::size_t l = 0; l < 4; ++l) {
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
    const auto word = [b](std::size_t i)
                          HWY_ATTR -> unsigned { return load<std::uint16_t>(b + 48 + 2 * i); };
    unsigned bits = 0;
    for (std::size_t i = 0; i < 4; ++i) bits |= (word(i) >> 12) << (4 * i);
    const auto bytes = std::bit_cast<std::array<Byte, 2>>(static_cast<std::uint16_t>(bits));
    const float d = half(bytes.data());
    for (std::size_t part = 0; part < 32; ++part) {
      const std::size_t group = part / 4;
      const std::size_t l = part % 4;
      const unsigned three = word(group / 2) >> (6 * (group % 2) + 3 * (l / 2)) & 7U;
      const float scale = d * as_float(static_cast<int>(2 * three + 1));
      const unsigned nibble = b[32 + part / 2] >> (4 * (l % 2)) & 15U;
      const float delta = (nibble & 8U) != 0 ? -kIq1Delta : kIq1Delta;
      moved_row(scale, delta, kIq1[b[part] | (nibble & 7U) << 8], y + 8 * part);
    }
  }
};

template <class Block>
void decode(const std::byte* in, std::size_t elements, float* out) {
  const auto* b = reinterpret_cast<const Byte*>(in);
  for (std::size_t i = 0; i < elements; i += Block::kElements) {
    Block::decode(b, out + i);
    b += Block::kBytes;
  }
}

struct Row {
  DType dtype;
  ToF32* decode;
};
constexpr Row kRows[] = {
    {DType::kQ4_0, decode<Q40>},       {DType::kQ4_1, decode<Q41>},
    {DType::kQ5_0, decode<Q50>},       {DType::kQ5_1, decode<Q51>},
    {DType::kQ8_0, decode<Q80>},       {DType::kQ8_1, decode<Q81>},
    {DType::kQ2_K, decode<Q2K>},       {DType::kQ3_K, decode<Q3K>},
    {DType::kQ4_K, decode<Q4K>},       {DType::kQ5_K, decode<Q5K>},
    {DType::kQ6_K, decode<Q6K>},       {DType::kQ8_K, decode<Q8K>},
    {DType::kIQ2_XXS, decode<Iq2Xxs>}, {DType::kIQ2_XS, decode<Iq2Xs>},
    {DType::kIQ3_XXS, decode<Iq3Xxs>}, {DType::kIQ1_S, decode<Iq1S>},
    {DType::kIQ4_NL, decode<Iq4Nl>},   {DType::kIQ3_S, decode<Iq3S>},
    {DType::kIQ2_S, decode<Iq2S>},     {DType::kIQ4_XS, decode<Iq4Xs>},
    {DType::kIQ1_M, decode<Iq1M>},     {DType::kTQ1_0, decode<Tq10>},
    {DType::kTQ2_0, decode<Tq20>},     {DType::kMXFP4, decode<Mxfp4>},
    {DType::kNVFP4, decode<Nvfp4>},    {DType::kQ1_0, decode<Q10>},
    {DType::kQ2_0, decode<Q20>},
};

ToF32* decoder_of(DType dtype) { return std::ranges::find(kRows, dtype, &Row::dtype)->decode; }

}  // namespace
}  // namespace stfs::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stfs {

HWY_EXPORT(decoder_of);

void blocks_to_f32(DType dtype, const std::byte* in, std::size_t elements, float* out) {
  const IeeeArithmetic ieee;
  HWY_DYNAMIC_DISPATCH(decoder_of)(dtype)(in, elements, out);
}

}  // namespace stfs

#endif
