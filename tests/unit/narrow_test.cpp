// Compares rounding of single values with long double arithmetic and with the processor's
// conversions, and rounding of many values on each vector target with rounding of single values.
#include "core/format/narrow.h"

#include "core/base/vectors.h"
#include "core/format/from_f32.h"
#include "tests/support/guarded.h"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace stfs::test {
namespace {

constexpr std::uint32_t kBits32Infinity = 0x7f800000;

// Returns `value` rounded to nearest, ties to even, with `precision` significant bits and exponents
// from `smallest` (the exponent of the least normal number) to `largest`. Larger values become
// infinite.
long double rounded(long double value, int precision, int smallest, int largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), smallest);
  const int unit = exponent - precision + 1;
  const long double result = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::fabs(result) >= std::ldexp(1.0L, largest + 1)) {
    return std::copysign(std::numeric_limits<long double>::infinity(), value);
  }
  return result;
}

long double reference_f16(long double value) { return rounded(value, 11, -14, 15); }
long double reference_bf16(long double value) { return rounded(value, 8, -126, 127); }

// Returns the value of 16 bits.
long double value_of(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const long double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<long double>::quiet_NaN()
                         : sign * std::numeric_limits<long double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

long double f16_value(std::uint16_t bits) { return value_of(bits, 5); }
long double bf16_value(std::uint16_t bits) { return value_of(bits, 8); }

void expect_same(long double found, long double expected, std::uint64_t bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(found)) << std::hex << bits;
    return;
  }
  EXPECT_EQ(found, expected) << std::hex << bits;
  EXPECT_EQ(std::signbit(found), std::signbit(expected)) << std::hex << bits;
}

// Visits every exponent and sign, with fractions around every rounding boundary.
template <class Visit>
void visit_binary32(const Visit& visit) {
  for (std::uint32_t head = 0; head < 512; ++head) {
    for (std::uint32_t bit = 0; bit < 24; ++bit) {
      for (std::int32_t around = -2; around <= 2; ++around) {
        for (const std::uint32_t fill : {0u, 0x7fffffu, 0x2aaaaau, 0x555555u, 0x400000u}) {
          const std::uint32_t fraction =
              ((fill & ~((1u << bit) - 1)) + (1u << bit) / 2 + static_cast<std::uint32_t>(around)) &
              0x7fffffu;
          visit(head << 23 | fraction);
        }
      }
    }
  }
}

TEST(Narrow, F32ToF16RoundsToNearest) {
  visit_binary32([](std::uint32_t bits) {
    const auto value = static_cast<long double>(std::bit_cast<float>(bits));
    expect_same(f16_value(to_f16(bits)), reference_f16(value), bits);
  });
}

TEST(Narrow, F32ToBf16RoundsToNearest) {
  visit_binary32([](std::uint32_t bits) {
    const auto value = static_cast<long double>(std::bit_cast<float>(bits));
    expect_same(bf16_value(to_bf16(bits)), reference_bf16(value), bits);
  });
}

TEST(Narrow, ExactValuesRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(f16_value(half));
    if (!std::isnan(wide)) {
      EXPECT_EQ(to_f16(std::bit_cast<std::uint32_t>(wide)), half);
    }
    if ((bits & 0x7fff) <= 0x7f80) {
      EXPECT_EQ(to_bf16(bits << 16), half);
    }
  }
}

TEST(Narrow, TiesRoundToEven) {
  const auto half = [](float value) { return to_f16(std::bit_cast<std::uint32_t>(value)); };
  const auto bfloat = [](float value) { return to_bf16(std::bit_cast<std::uint32_t>(value)); };

  EXPECT_EQ(half(2049.0F), half(2048.0F));
  EXPECT_EQ(half(2051.0F), half(2052.0F));
  EXPECT_EQ(half(65519.996F), 0x7bff);
  EXPECT_EQ(half(65520.0F), 0x7c00);
  EXPECT_EQ(half(-65520.0F), 0xfc00);
  EXPECT_EQ(half(std::ldexp(1.0F, -25)), 0x0000) << "a tie between 0 and the least subnormal";
  EXPECT_EQ(half(std::ldexp(1.0000001F, -25)), 0x0001);
  EXPECT_EQ(half(-std::ldexp(1.0F, -26)), 0x8000);
  EXPECT_EQ(half(std::ldexp(2047.0F, -25)), 0x0400) << "the largest subnormal rounds up to normal";
  EXPECT_EQ(bfloat(257.0F), bfloat(256.0F));
  EXPECT_EQ(bfloat(259.0F), bfloat(260.0F));
  EXPECT_EQ(bfloat(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Narrow, NanBecomesQuietNanWithSameSign) {
  for (const std::uint32_t payload : {1u, 0x1fffu, 0x2000u, 0x400000u, 0x400001u, 0x7fffffu}) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const std::uint32_t bits = sign | kBits32Infinity | payload;
      const std::uint16_t half = to_f16(bits);
      const std::uint16_t bfloat = to_bf16(bits);

      EXPECT_TRUE(std::isnan(f16_value(half))) << std::hex << bits;
      EXPECT_TRUE(std::isnan(bf16_value(bfloat))) << std::hex << bits;
      EXPECT_NE(half & 0x200, 0);
      EXPECT_NE(bfloat & 0x40, 0);
      EXPECT_EQ(half & 0x8000, sign >> 16);
      EXPECT_EQ(bfloat & 0x8000, sign >> 16);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) std::uint16_t by_processor(std::uint32_t bits) {
  const __m128i result = _mm_cvtps_ph(_mm_castsi128_ps(_mm_set1_epi32(static_cast<int>(bits))),
                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return static_cast<std::uint16_t>(_mm_extract_epi16(result, 0));
}

TEST(Narrow, F32ToF16MatchesProcessor) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  asm("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
  if ((c & (1u << 29)) == 0) GTEST_SKIP() << "this processor has no F16C";
  std::uint64_t different = 0;
  // The step is coprime to 2^32, so both halves take every value.
  for (std::uint64_t i = 0, bits = 0; i < (1u << 24); ++i, bits += 0x9e3779b1u) {
    const auto in = static_cast<std::uint32_t>(bits);
    different += by_processor(in) != to_f16(in) ? 1 : 0;
  }
  visit_binary32(
      [&](std::uint32_t bits) { different += by_processor(bits) != to_f16(bits) ? 1 : 0; });

  EXPECT_EQ(different, 0u);
}
#endif

void expect_rounded_once(double wide) {
  const auto bits = std::bit_cast<std::uint64_t>(wide);
  const std::uint32_t odd = to_odd_f32(bits);
  expect_same(f16_value(to_f16(odd)), reference_f16(wide), bits);
  expect_same(bf16_value(to_bf16(odd)), reference_bf16(wide), bits);
}

TEST(Narrow, F64IsRoundedOnlyOnce) {
  std::mt19937_64 random(7);
  for (int exponent = -1080; exponent <= 1023; ++exponent) {
    for (const int bit : {7, 8, 9, 10, 11, 12, 13, 23, 24, 25, 28, 29, 30, 52}) {
      // A tie of a narrow type, and its neighbours, which binary32 rounds to the tie.
      const double tie = std::ldexp(1.0 + std::ldexp(1.0, -bit), exponent);
      const double odd_tie =
          std::ldexp(1.0 + std::ldexp(1.0, -bit + 1) + std::ldexp(1.0, -bit), exponent);
      for (const double value : {tie, odd_tie}) {
        for (const double beside :
             {value, std::nextafter(value, 0.0), std::nextafter(value, HUGE_VAL)}) {
          expect_rounded_once(beside);
          expect_rounded_once(-beside);
        }
      }
    }
  }
  for (int i = 0; i < 100'000; ++i) expect_rounded_once(std::bit_cast<double>(random()));
}

TEST(Narrow, RoundingToOddKeepsSpecialValues) {
  EXPECT_EQ(to_odd_f32(0), 0u);
  EXPECT_EQ(to_odd_f32(0x8000000000000000u), 0x80000000u);
  EXPECT_EQ(to_odd_f32(0x7ff0000000000000u), kBits32Infinity);
  EXPECT_EQ(to_odd_f32(0xfff0000000000000u), 0x80000000u | kBits32Infinity);
  EXPECT_EQ(to_odd_f32(std::bit_cast<std::uint64_t>(std::numeric_limits<double>::max())),
            0x7f7fffffu)
      << "finite values must stay finite, so that they are counted as out of range";
  EXPECT_GT(to_odd_f32(0x7ff0000000000001u) & 0x7fffffffu, kBits32Infinity);
  EXPECT_EQ(to_odd_f32(1), 1u) << "the least subnormal must not become 0";
}

// Returns the bits of binary32 values at every rounding boundary: for each value of 16 bits, the
// value itself, the halfway point to the next value, and their neighbours. This includes infinity
// and every NaN without lower bits.
std::vector<std::uint32_t> boundaries() {
  std::vector<std::uint32_t> all;
  const auto add = [&all](std::uint32_t bits) {
    for (std::uint32_t around = 0; around < 5; ++around) all.push_back(bits + around - 2);
  };
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    add(code << 16);           // BF16
    add(code << 16 | 0x8000);  // halfway
    const long double value = f16_value(static_cast<std::uint16_t>(code));
    const long double next = f16_value(static_cast<std::uint16_t>(code + 1));
    if (std::isnan(value)) continue;
    add(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    if (!std::isfinite(value) || !std::isfinite(next)) continue;
    add(std::bit_cast<std::uint32_t>(static_cast<float>((value + next) / 2)));
  }
  add(std::bit_cast<std::uint32_t>(65520.0F));  // the halfway point to infinity
  add(std::bit_cast<std::uint32_t>(-65520.0F));
  for (std::uint32_t head = 0; head < 1U << 19; ++head) {  // every upper part that binary16 keeps
    for (const std::uint32_t low : {0x0FFFU, 0x1000U, 0x1001U}) all.push_back(head << 13 | low);
  }
  return all;
}

std::vector<std::uint16_t> rounded(FromF32* round, std::span<const std::uint32_t> bits) {
  std::vector<float> values(bits.size());
  if (!bits.empty()) std::memcpy(values.data(), bits.data(), bits.size_bytes());
  std::vector<std::uint16_t> out(bits.size() + 1, 0x5555);
  round(values.data(), values.size(), std::as_writable_bytes(std::span(out)).data());
  EXPECT_EQ(out.back(), 0x5555);
  out.pop_back();
  return out;
}

TEST(Narrow, AllVectorTargetsMatchScalarRounding) {
  const std::vector<std::uint32_t> bits = boundaries();
  std::vector<std::uint16_t> f16;
  std::vector<std::uint16_t> bf16;
  for (const std::uint32_t value : bits) {
    f16.push_back(to_f16(value));
    bf16.push_back(to_bf16(value));
  }
  ASSERT_GT(bits.size(), 2'000'000U);
  with_each_target([&](const char* vectors) {
    EXPECT_TRUE(rounded(f32_to_f16, bits) == f16) << vectors;
    EXPECT_TRUE(rounded(f32_to_bf16, bits) == bf16) << vectors;
  });
}

TEST(Narrow, AnyCountWorksUnalignedAndInPlace) {
  const std::vector<std::uint32_t> bits = boundaries();
  for (std::size_t count = 0; count < 70; ++count) {
    const std::span some = std::span(bits).subspan(977 * count, count);
    std::vector<std::uint16_t> f16(count);
    std::vector<std::uint16_t> bf16(count);
    std::ranges::transform(some, f16.begin(), to_f16);
    std::ranges::transform(some, bf16.begin(), to_bf16);
    with_each_target([&](const char* vectors) {
      EXPECT_EQ(rounded(f32_to_f16, some), f16) << vectors;
      EXPECT_EQ(rounded(f32_to_bf16, some), bf16) << vectors;
      if (count == 0) return;
      std::vector<float> values(count + 1);
      std::vector<char> odd(2 * count + 1);
      std::memcpy(values.data(), some.data(), some.size_bytes());
      f32_to_f16(values.data(), count, std::as_writable_bytes(std::span(odd)).data() + 1);
      EXPECT_EQ(std::memcmp(odd.data() + 1, f16.data(), 2 * count), 0);
      f32_to_bf16(values.data(), count, std::as_writable_bytes(std::span(values)).data());
      EXPECT_EQ(std::memcmp(values.data(), bf16.data(), 2 * count), 0);
    });
  }
}

TEST(Narrow, DoesNotAccessMemoryOutsideBuffers) {
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 33U, 1000U}) {
    for (const auto flush : {Guarded::Flush::kBegin, Guarded::Flush::kEnd}) {
      const Guarded in(count * sizeof(float), flush);
      const Guarded out(count * 2, flush);
      with_each_target([&](const char*) {
        f32_to_f16(reinterpret_cast<const float*>(in.data()), count, out.data());
        f32_to_bf16(reinterpret_cast<const float*>(in.data()), count, out.data());
      });
    }
  }
}

#if defined(__x86_64__)
TEST(Narrow, IgnoresRoundingModeOfThread) {
  const std::vector<std::uint32_t> bits = boundaries();
  const std::vector<std::uint16_t> f16 = rounded(f32_to_f16, bits);
  const std::vector<std::uint16_t> bf16 = rounded(f32_to_bf16, bits);
  const OtherArithmetic other;
  const bool is_f16 = rounded(f32_to_f16, bits) == f16;
  const bool is_bf16 = rounded(f32_to_bf16, bits) == bf16;

  EXPECT_TRUE(is_f16);
  EXPECT_TRUE(is_bf16);
}
#endif

}  // namespace
}  // namespace stfs::test
