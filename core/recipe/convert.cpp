#include "core/recipe/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace stfs {
namespace {

// --- the small types, as tables made from their definitions

constexpr float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

constexpr float power_of_two(int exponent) {
  // 2^-127 and below are subnormal in binary32.
  return exponent >= -126 ? from_bits(static_cast<std::uint32_t>(exponent + 127) << 23)
                          : from_bits(1U << (exponent + 149));
}

// A finite value of a format with this many exponent and significand bits.
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

// Element i of an array of any alignment.
template <class T>
T load(const std::byte* in, std::size_t i) {
  T value;
  std::memcpy(&value, in + i * sizeof(T), sizeof(T));
  return value;
}

void from_bytes(const std::array<float, 256>& table, const std::byte* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = table[std::to_integer<unsigned>(in[i])];
}

void from_nibbles(const std::byte* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = kF4[std::to_integer<unsigned>(in[i / 2]) >> (i % 2 * 4) & 15];
  }
}

void from_sextets(const std::array<float, 64>& table, const std::byte* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t bit = i * 6;
    auto window = std::to_integer<unsigned>(in[bit / 8]);
    if (bit % 8 > 2) window |= std::to_integer<unsigned>(in[bit / 8 + 1]) << 8;
    out[i] = table[window >> (bit % 8) & 63];
  }
}

void from_bf16(const std::byte* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(load<std::uint16_t>(in, i)) << 16;
    std::memcpy(&out[i], &bits, sizeof bits);  // as bits: a float register may quiet a NaN
  }
}

void from_f16(const std::byte* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = half_to_float(load<std::uint16_t>(in, i));
}

void from_f64(const std::byte* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(load<double>(in, i));
}

#if defined(__x86_64__)
// Each converts as many elements as fill whole registers and returns their number.
[[gnu::target("avx2")]] std::size_t from_bf16_avx2(const std::byte* in, std::span<float> out) {
  std::size_t i = 0;
  for (; i + 8 <= out.size(); i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * 2));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.data() + i), wide);
  }
  return i;
}

[[gnu::target("avx2,f16c")]] std::size_t from_f16_f16c(const std::byte* in, std::span<float> out) {
  std::size_t i = 0;
  for (; i + 8 <= out.size(); i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * 2));
    _mm256_storeu_ps(out.data() + i, _mm256_cvtph_ps(narrow));
  }
  return i;
}

[[gnu::target("avx2")]] std::size_t from_f64_avx2(const std::byte* in, std::span<float> out) {
  std::size_t i = 0;
  for (; i + 4 <= out.size(); i += 4) {
    const __m256d wide = _mm256_loadu_pd(reinterpret_cast<const double*>(in + i * 8));
    _mm_storeu_ps(out.data() + i, _mm256_cvtpd_ps(wide));
  }
  return i;
}

// F16C is not among the names that every compiler's __builtin_cpu_supports knows.
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

// What the fast paths convert; the rest is left to the portable ones.
std::size_t convert_fast(DType dtype, const std::byte* in, std::span<float> out) {
  static const Processor processor;
  if (dtype == DType::kBF16 && processor.avx2) return from_bf16_avx2(in, out);
  if (dtype == DType::kF16 && processor.f16c) return from_f16_f16c(in, out);
  if (dtype == DType::kF64 && processor.avx2) return from_f64_avx2(in, out);
  return 0;
}
#else
std::size_t convert_fast(DType, const std::byte*, std::span<float>) { return 0; }
#endif

// Reads raw elements and converts them, a cacheful at a time.
class Float32 : public Producer {
 public:
  Float32(Content raw, DType dtype, std::uint64_t count)
      : raw_(std::move(raw)), dtype_(dtype), count_(count) {}

  std::uint64_t size() const override { return count_ * sizeof(float); }

  int verify() const override { return raw_.verify(); }

  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const unsigned bits = dtype_bits(dtype_);
    const std::uint64_t begin = offset / sizeof(float) * bits / 8;
    const std::uint64_t end =
        ((offset + length + sizeof(float) - 1) / sizeof(float) * bits + 7) / 8;
    const auto found = raw_.missing(begin, end - begin);
    missing.insert(missing.end(), found.begin(), found.end());
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const unsigned bits = dtype_bits(dtype_);
    // Elements are converted from a byte's boundary on: F4 in pairs, F6 in fours.
    const std::uint64_t group = 8 / std::gcd(bits, 8U);
    const std::uint64_t block = kRawBytes * 8 / bits / group * group;  // elements
    const auto raw = std::make_unique_for_overwrite<std::byte[]>(kRawBytes);
    std::vector<float> edge;  // for elements of which a part is wanted
    while (!out.empty()) {
      const std::uint64_t first = offset / sizeof(float) / group * group;
      const std::uint64_t last =
          std::min({count_, first + block, first + (out.size() / sizeof(float) + 2 * group)});
      const auto elements = static_cast<std::size_t>(last - first);
      const std::span bytes(raw.get(), static_cast<std::size_t>((elements * bits + 7) / 8));
      if (const int error = raw_.copy_unverified(first * bits / 8, bytes)) return error;
      const auto skip = static_cast<std::size_t>(offset - first * sizeof(float));
      const std::size_t take = std::min(out.size(), elements * sizeof(float) - skip);
      const bool is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % alignof(float) == 0;
      if (skip == 0 && take / sizeof(float) > 0 && is_aligned) {
        const std::size_t whole = take / sizeof(float);
        convert_to_f32(dtype_, bytes, {reinterpret_cast<float*>(out.data()), whole});
        out = out.subspan(whole * sizeof(float));
        offset += whole * sizeof(float);
      } else {
        edge.resize(elements);
        convert_to_f32(dtype_, bytes, edge);
        std::memcpy(out.data(), std::as_bytes(std::span(edge)).data() + skip, take);
        out = out.subspan(take);
        offset += take;
      }
    }
    return 0;
  }

 private:
  static constexpr std::size_t kRawBytes = 48 << 10;  // read at a time; stays in the cache

  Content raw_;
  DType dtype_;
  std::uint64_t count_;
};

}  // namespace

bool has_f32(DType dtype) {
  switch (dtype) {
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kF8E5M2:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kF8E4M3Fnuz:
    case DType::kF8E5M2Fnuz:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return true;
    default:
      return false;
  }
}

void convert_to_f32_portable(DType dtype, std::span<const std::byte> in, std::span<float> out) {
  switch (dtype) {
    case DType::kF4:
      return from_nibbles(in.data(), out);
    case DType::kF6E2M3:
      return from_sextets(kF6E2M3, in.data(), out);
    case DType::kF6E3M2:
      return from_sextets(kF6E3M2, in.data(), out);
    case DType::kF8E5M2:
      return from_bytes(kE5M2, in.data(), out);
    case DType::kF8E4M3:
      return from_bytes(kE4M3, in.data(), out);
    case DType::kF8E8M0:
      return from_bytes(kE8M0, in.data(), out);
    case DType::kF8E4M3Fnuz:
      return from_bytes(kE4M3Fnuz, in.data(), out);
    case DType::kF8E5M2Fnuz:
      return from_bytes(kE5M2Fnuz, in.data(), out);
    case DType::kF16:
      return from_f16(in.data(), out);
    case DType::kBF16:
      return from_bf16(in.data(), out);
    case DType::kF64:
      return from_f64(in.data(), out);
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), in.data(), out.size_bytes());
      return;
    default:
      return;
  }
}

void convert_to_f32(DType dtype, std::span<const std::byte> in, std::span<float> out) {
  const std::size_t done = convert_fast(dtype, in.data(), out);
  convert_to_f32_portable(dtype, in.subspan(done * dtype_bits(dtype) / 8), out.subspan(done));
}

std::unique_ptr<const Producer> as_f32(Content raw, DType dtype, std::uint64_t count) {
  return std::make_unique<Float32>(std::move(raw), dtype, count);
}

}  // namespace stfs
