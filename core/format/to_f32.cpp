#include "core/format/to_f32.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace stfs {
namespace {

// --- tables for types of 8 bits or fewer, computed from the definitions of the types

constexpr float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

constexpr float power_of_two(int exponent) {
  // 2^-127 and below are subnormal in binary32.
  return exponent >= -126 ? from_bits(static_cast<std::uint32_t>(exponent + 127) << 23)
                          : from_bits(1U << (exponent + 149));
}

// The finite value of a code with these numbers of exponent and significand bits. Exponent 0 means
// subnormal.
constexpr float finite(unsigned code, unsigned exponent_bits, unsigned significand_bits, int bias) {
  const unsigned significand = code & ((1U << significand_bits) - 1);
  const unsigned exponent = (code >> significand_bits) & ((1U << exponent_bits) - 1);
  const bool negative = (code >> (significand_bits + exponent_bits) & 1) != 0;
  const auto fraction =
      static_cast<float>(significand) / static_cast<float>(1U << significand_bits);
  const float magnitude = exponent == 0
                              ? fraction * power_of_two(1 - bias)
                              : (1.0F + fraction) * power_of_two(static_cast<int>(exponent) - bias);
  return negative ? -magnitude : magnitude;
}

constexpr std::uint32_t kQuietNan = 0x7FC00000;

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 31U;
  const std::uint32_t significand = half & 0x3FFU;
  if (exponent == 31) {
    const std::uint32_t quiet = significand == 0 ? 0 : 0x00400000U;
    return from_bits(sign | 0x7F800000U | quiet | (significand << 13));
  }
  return finite(half, 5, 10, 15);
}

constexpr float e4m3(unsigned code) {
  if ((code & 0x7F) == 0x7F) return from_bits(kQuietNan | (code & 0x80) << 24);
  return finite(code, 4, 3, 7);
}
constexpr float e4m3fnuz(unsigned code) {
  return code == 0x80 ? from_bits(kQuietNan) : finite(code, 4, 3, 8);
}
constexpr float e5m2fnuz(unsigned code) {
  return code == 0x80 ? from_bits(kQuietNan) : finite(code, 5, 2, 16);
}
constexpr float e8m0(unsigned code) {
  return code == 255 ? from_bits(kQuietNan) : power_of_two(static_cast<int>(code) - 127);
}
constexpr float e5m2(unsigned code) { return half_to_float(static_cast<std::uint16_t>(code << 8)); }

template <std::size_t Size, class ValueOf>
constexpr std::array<float, Size> table(const ValueOf& value_of) {
  std::array<float, Size> out{};
  for (unsigned code = 0; code < Size; ++code) out[code] = value_of(code);
  return out;
}

constexpr auto kE5M2 = table<256>(e5m2);
constexpr auto kE4M3 = table<256>(e4m3);
constexpr auto kE8M0 = table<256>(e8m0);
constexpr auto kE4M3Fnuz = table<256>(e4m3fnuz);
constexpr auto kE5M2Fnuz = table<256>(e5m2fnuz);
constexpr auto kF4 = table<16>([](unsigned code) { return finite(code, 2, 1, 1); });
constexpr auto kF6E2M3 = table<64>([](unsigned code) { return finite(code, 2, 3, 1); });
constexpr auto kF6E3M2 = table<64>([](unsigned code) { return finite(code, 3, 2, 3); });

// --- loops

// Element `i` of an array at an unaligned address.
template <class T>
T load(const std::byte* in, std::size_t i) {
  T value;
  std::memcpy(&value, in + i * sizeof(T), sizeof(T));
  return value;
}

void from_bytes(const std::array<float, 256>& table, const std::byte* in, std::size_t elements,
                float* out) {
  for (std::size_t i = 0; i < elements; ++i) out[i] = table[std::to_integer<unsigned>(in[i])];
}

void from_sextets(const std::array<float, 64>& table, const std::byte* in, std::size_t elements,
                  float* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t bit = i * 6;
    auto window = std::to_integer<unsigned>(in[bit / 8]);
    if (bit % 8 > 2) window |= std::to_integer<unsigned>(in[bit / 8 + 1]) << 8;
    out[i] = table[window >> (bit % 8) & 63];
  }
}

#if defined(__x86_64__)
// Each converts the elements that fill whole registers and returns their number.
[[gnu::target("avx2")]] std::size_t from_bf16_avx2(const std::byte* in, std::size_t elements,
                                                   float* out) {
  std::size_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * 2));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), wide);
  }
  return i;
}

[[gnu::target("avx2,f16c")]] std::size_t from_f16_f16c(const std::byte* in, std::size_t elements,
                                                       float* out) {
  std::size_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * 2));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(narrow));
  }
  return i;
}

[[gnu::target("avx2")]] std::size_t from_f64_avx2(const std::byte* in, std::size_t elements,
                                                  float* out) {
  std::size_t i = 0;
  for (; i + 4 <= elements; i += 4) {
    const __m256d wide = _mm256_loadu_pd(reinterpret_cast<const double*>(in + i * 8));
    _mm_storeu_ps(out + i, _mm256_cvtpd_ps(wide));
  }
  return i;
}

// Not every compiler's __builtin_cpu_supports knows the name "f16c".
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

struct Processor {
  bool avx2 = __builtin_cpu_supports("avx2") != 0;
  bool f16c = avx2 && has_f16c();
};

const Processor& processor() {
  static const Processor processor;
  return processor;
}
#endif

}  // namespace

void f4_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  for (std::size_t i = 0; i < elements / 2; ++i) {
    const auto pair = std::to_integer<unsigned>(blocks[i]);
    out[2 * i] = kF4[pair & 15];
    out[2 * i + 1] = kF4[pair >> 4];
  }
  if (elements % 2 != 0)
    out[elements - 1] = kF4[std::to_integer<unsigned>(blocks[elements / 2]) & 15];
}

void f6_e2m3_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_sextets(kF6E2M3, blocks, elements, out);
}

void f6_e3m2_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_sextets(kF6E3M2, blocks, elements, out);
}

void f8_e5m2_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_bytes(kE5M2, blocks, elements, out);
}

void f8_e4m3_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_bytes(kE4M3, blocks, elements, out);
}

void f8_e8m0_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_bytes(kE8M0, blocks, elements, out);
}

void f8_e4m3fnuz_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_bytes(kE4M3Fnuz, blocks, elements, out);
}

void f8_e5m2fnuz_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  from_bytes(kE5M2Fnuz, blocks, elements, out);
}

void f16_to_f32_portable(const std::byte* blocks, std::size_t elements, float* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    out[i] = half_to_float(load<std::uint16_t>(blocks, i));
  }
}

void bf16_to_f32_portable(const std::byte* blocks, std::size_t elements, float* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(load<std::uint16_t>(blocks, i)) << 16;
    std::memcpy(&out[i], &bits, sizeof bits);  // a copy through a float may quiet a NaN
  }
}

void f32_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  if (elements > 0) std::memcpy(out, blocks, elements * sizeof(float));
}

void f64_to_f32_portable(const std::byte* blocks, std::size_t elements, float* out) {
  for (std::size_t i = 0; i < elements; ++i) out[i] = static_cast<float>(load<double>(blocks, i));
}

void f16_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  std::size_t done = 0;
#if defined(__x86_64__)
  if (processor().f16c) done = from_f16_f16c(blocks, elements, out);
#endif
  f16_to_f32_portable(blocks + done * 2, elements - done, out + done);
}

void bf16_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  std::size_t done = 0;
#if defined(__x86_64__)
  if (processor().avx2) done = from_bf16_avx2(blocks, elements, out);
#endif
  bf16_to_f32_portable(blocks + done * 2, elements - done, out + done);
}

void f64_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  std::size_t done = 0;
#if defined(__x86_64__)
  if (processor().avx2) done = from_f64_avx2(blocks, elements, out);
#endif
  f64_to_f32_portable(blocks + done * 8, elements - done, out + done);
}

}  // namespace stfs
