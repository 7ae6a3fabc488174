#include "core/format/to_f32.h"

#include "core/base/vectors.h"
#include "core/format/ieee.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

// Highway compiles this file once for each set of instructions and chooses one when the program
// runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/format/to_f32.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stfs::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;

template <class Tag>
HWY_INLINE hn::Vec<Tag> load(Tag tag, const std::byte* in) {
  return hn::LoadU(tag, reinterpret_cast<const hn::TFromD<Tag>*>(in));
}

HWY_INLINE hn::Vec<Floats> scaled(hn::Vec<Floats> values, float factor) {
  return hn::Mul(values, hn::Set(Floats(), factor));
}

// Returns the bits of a binary16 from its magnitude and from the sign in bit 7 of `byte`.
HWY_INLINE hn::Vec<Halves> with_sign(hn::Vec<Halves> magnitude, hn::Vec<Halves> byte) {
  const Halves halves;
  return hn::Or(magnitude, hn::ShiftLeft<8>(hn::And(byte, hn::Set(halves, 0x80))));
}

// Converts the bits of binary16 to binary32.
HWY_INLINE hn::Vec<Floats> of_binary16(hn::Vec<Halves> bits) {
  const Floats floats;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // with F16C
  return hn::PromoteTo(floats, hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), bits));
#else
  // When the bits are moved to the exponent and significand of a binary32, the exponent is too
  // small by 112.
  const Words words;
  const hn::RebindToSigned<Words> integers;
  const auto wide = hn::PromoteTo(words, bits);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(words, 0x7FFF)));
  const auto finite = hn::BitCast(words, scaled(hn::BitCast(floats, magnitude), 0x1p112F));
  const auto infinite = hn::Or(magnitude, hn::Set(words, 0x7F800000));
  const auto from = [&](int limit) HWY_ATTR {
    const auto below = hn::Lt(hn::BitCast(integers, magnitude), hn::Set(integers, limit));
    return hn::RebindMask(words, hn::Not(below));
  };
  auto result = hn::IfThenElse(from(0x0F800000), infinite, finite);
  result = hn::Or(result, hn::IfThenElseZero(from(0x0F800001), hn::Set(words, 0x00400000)));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(words, 0x8000)));
  return hn::BitCast(floats, hn::Or(result, sign));
#endif
}

struct F16 {
  static constexpr std::size_t kBytes = 2;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    return of_binary16(load(Halves(), in));
  }
};

struct Bf16 {
  static constexpr std::size_t kBytes = 2;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    const auto wide = hn::PromoteTo(Words(), load(Halves(), in));
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(wide));
  }
};

struct E5M2 {
  static constexpr std::size_t kBytes = 1;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    return of_binary16(hn::ShiftLeft<8>(hn::PromoteTo(Halves(), load(Bytes(), in))));
  }
};

// Converts by way of binary16, which has more bits. The difference of the biases, 8, becomes a
// factor of 2^8.
struct E4M3 {
  static constexpr std::size_t kBytes = 1;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    const Halves halves;
    const auto byte = hn::PromoteTo(halves, load(Bytes(), in));
    const auto magnitude = hn::And(byte, hn::Set(halves, 0x7F));
    const auto is_nan = hn::Eq(magnitude, hn::Set(halves, 0x7F));
    const auto half = hn::IfThenElse(is_nan, hn::Set(halves, 0x7E00), hn::ShiftLeft<7>(magnitude));
    return scaled(of_binary16(with_sign(half, byte)), 0x1p8F);
  }
};

struct E4M3Fnuz {
  static constexpr std::size_t kBytes = 1;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    const Halves halves;
    const auto byte = hn::PromoteTo(halves, load(Bytes(), in));
    const auto magnitude = hn::ShiftLeft<7>(hn::And(byte, hn::Set(halves, 0x7F)));
    const auto is_nan = hn::Eq(byte, hn::Set(halves, 0x80));
    const auto half = hn::IfThenElse(is_nan, hn::Set(halves, 0x7E00), with_sign(magnitude, byte));
    return scaled(of_binary16(half), 0x1p7F);
  }
};

// F8_E5M2FNUZ uses the largest exponent for numbers, so it cannot be converted by way of binary16.
struct E5M2Fnuz {
  static constexpr std::size_t kBytes = 1;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    const Words words;
    const auto byte = hn::PromoteTo(words, load(Bytes(), in));
    const auto magnitude = hn::ShiftLeft<21>(hn::And(byte, hn::Set(words, 0x7F)));
    const auto value = scaled(hn::BitCast(Floats(), magnitude), 0x1p111F);
    const auto sign = hn::ShiftLeft<24>(hn::And(byte, hn::Set(words, 0x80)));
    const auto is_nan = hn::Eq(byte, hn::Set(words, 0x80));
    return hn::BitCast(Floats(), hn::IfThenElse(is_nan, hn::Set(words, 0x7FC00000),
                                                hn::Or(hn::BitCast(words, value), sign)));
  }
};

struct E8M0 {
  static constexpr std::size_t kBytes = 1;
  HWY_INLINE static hn::Vec<Floats> values(const std::byte* in) {
    const Words words;
    const auto byte = hn::PromoteTo(words, load(Bytes(), in));
    const auto is_least = hn::Eq(byte, hn::Zero(words));
    const auto is_nan = hn::Eq(byte, hn::Set(words, 0xFF));
    auto bits = hn::ShiftLeft<23>(byte);
    bits = hn::IfThenElse(is_least, hn::Set(words, 0x00400000), bits);  // 2^-127: subnormal
    return hn::BitCast(Floats(), hn::IfThenElse(is_nan, hn::Set(words, 0x7FC00000), bits));
  }
};

template <class From>
void convert(const std::byte* in, std::size_t elements, float* out) {
  const Floats floats;
  constexpr std::size_t kMost = hn::MaxLanes(floats);
  const std::size_t lanes = hn::Lanes(floats);
  if (elements >= lanes) {
    for (std::size_t i = 0; i + lanes < elements; i += lanes) {
      hn::StoreU(From::values(in + i * From::kBytes), floats, out + i);
    }
    // The last vector overlaps the one before.
    const std::size_t last = elements - lanes;
    hn::StoreU(From::values(in + last * From::kBytes), floats, out + last);
    return;
  }
  if (elements == 0) return;
  HWY_ALIGN std::byte few[kMost * From::kBytes] = {};
  HWY_ALIGN float values[kMost];
  std::memcpy(few, in, elements * From::kBytes);
  hn::Store(From::values(few), floats, values);
  std::memcpy(out, values, elements * sizeof(float));
}

void f4_one_by_one(const std::byte* in, std::size_t elements, float* out) {
  constexpr std::array<float, 8> kMagnitudes{0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::size_t i = 0; i < elements; ++i) {
    const auto code = std::to_integer<unsigned>(in[i / 2]) >> (i % 2 * 4);
    out[i] = (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
  }
}

// When the bits of F4 are moved to the exponent and significand of a binary16, the exponent is too
// small by 14.
void from_f4(const std::byte* in, std::size_t elements, float* out) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // a vector of HWY_SCALAR cannot be halved
  const Halves halves;
  const std::size_t lanes = hn::Lanes(halves);
  const hn::Half<Bytes> pairs;
  const hn::Rebind<std::uint16_t, decltype(pairs)> spread;
  for (; i + lanes <= elements; i += lanes) {
    const auto pair = hn::PromoteTo(spread, load(pairs, in + i / 2));
    const auto apart = hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(spread, 0x0F0F));
    const auto code = hn::PromoteTo(halves, hn::BitCast(Bytes(), apart));
    const auto magnitude = hn::ShiftLeft<9>(hn::And(code, hn::Set(halves, 7)));
    const auto sign = hn::ShiftLeft<12>(hn::And(code, hn::Set(halves, 8)));
    hn::StoreU(scaled(of_binary16(hn::Or(magnitude, sign)), 0x1p14F), Floats(), out + i);
  }
#endif
  if (i < elements) f4_one_by_one(in + i / 2, elements - i, out + i);
}

// The compiler vectorises this loop.
void from_f64(const std::byte* in, std::size_t elements, float* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    double value = 0;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    out[i] = static_cast<float>(value);
  }
}

// Returns the value of a code with these numbers of exponent and significand bits. An exponent of 0
// means a subnormal number.
constexpr float value_of(unsigned code, unsigned exponent_bits, unsigned significand_bits,
                         int bias) {
  const unsigned significand = code & ((1U << significand_bits) - 1);
  const unsigned exponent = code >> significand_bits & ((1U << exponent_bits) - 1);
  const bool is_negative = (code >> (significand_bits + exponent_bits) & 1) != 0;
  const unsigned implicit = exponent == 0 ? 0 : 1U << significand_bits;
  const int power =
      static_cast<int>(exponent == 0 ? 1 : exponent) - bias - static_cast<int>(significand_bits);
  const auto unit = std::bit_cast<float>(static_cast<std::uint32_t>(127 + power) << 23);
  const float magnitude = static_cast<float>(implicit + significand) * unit;
  return is_negative ? -magnitude : magnitude;
}

template <unsigned exponent_bits, unsigned significand_bits, int bias>
void from_f6(const std::byte* in, std::size_t elements, float* out) {
  constexpr auto kValues = [] {
    std::array<float, 64> values{};
    for (unsigned code = 0; code < values.size(); ++code) {
      values[code] = value_of(code, exponent_bits, significand_bits, bias);
    }
    return values;
  }();
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t bit = i * 6;
    auto window = std::to_integer<unsigned>(in[bit / 8]);
    if (bit % 8 > 2) window |= std::to_integer<unsigned>(in[bit / 8 + 1]) << 8;
    out[i] = kValues[window >> (bit % 8) & 63];
  }
}

void copy_f32(const std::byte* in, std::size_t elements, float* out) {
  if (elements > 0) std::memcpy(out, in, elements * sizeof(float));
}

struct Row {
  DType dtype;
  ToF32* convert;
};
constexpr Row kRows[] = {
    {DType::kF4, from_f4},
    {DType::kF6E2M3, from_f6<2, 3, 1>},
    {DType::kF6E3M2, from_f6<3, 2, 3>},
    {DType::kF8E5M2, convert<E5M2>},
    {DType::kF8E4M3, convert<E4M3>},
    {DType::kF8E8M0, convert<E8M0>},
    {DType::kF8E4M3Fnuz, convert<E4M3Fnuz>},
    {DType::kF8E5M2Fnuz, convert<E5M2Fnuz>},
    {DType::kF16, convert<F16>},
    {DType::kBF16, convert<Bf16>},
    {DType::kF32, copy_f32},
    {DType::kF64, from_f64},
};

ToF32* converter_of(DType dtype) { return std::ranges::find(kRows, dtype, &Row::dtype)->convert; }

}  // namespace
}  // namespace stfs::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stfs {

HWY_EXPORT(converter_of);

void float_to_f32(DType dtype, const std::byte* in, std::size_t elements, float* out) {
  const IeeeArithmetic ieee;
  HWY_DYNAMIC_DISPATCH(converter_of)(dtype)(in, elements, out);
}

}  // namespace stfs

#endif
