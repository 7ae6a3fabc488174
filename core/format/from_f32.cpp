#include "core/format/from_f32.h"

#include "core/base/vectors.h"
#include "core/format/ieee.h"
#include "core/format/narrow.h"

#include <bit>
#include <cstdint>
#include <cstring>

// Highway compiles this file once for each set of instructions and chooses one when the program
// runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/format/from_f32.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stfs::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using SignedWords = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;

constexpr std::uint32_t kInfinity = 0x7F800000;

// Stores words, which are all less than 2^16, as 16-bit words.
template <class V>
HWY_INLINE void store(V words, std::byte* out) {
  hn::StoreU(hn::DemoteTo(Halves(), hn::BitCast(SignedWords(), words)), Halves(),
             reinterpret_cast<std::uint16_t*>(out));
}

template <class V>
HWY_INLINE auto is_nan(V magnitude) {
  return hn::RebindMask(
      Words(), hn::Gt(hn::BitCast(SignedWords(), magnitude), hn::Set(SignedWords(), kInfinity)));
}

struct Bf16 {
  HWY_INLINE static void round(hn::Vec<Floats> values, std::byte* out) {
    const Words words;
    const auto bits = hn::BitCast(words, values);
    const auto magnitude = hn::And(bits, hn::Set(words, 0x7FFFFFFF));
    const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(words, 0x7FFF)), last);
    const auto quiet = hn::Or(bits, hn::Set(words, 0x400000));
    store(hn::ShiftRight<16>(hn::IfThenElse(is_nan(magnitude), quiet, rounded)), out);
  }
};

struct F16 {
  HWY_INLINE static void round(hn::Vec<Floats> values, std::byte* out) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // with F16C
    const hn::Rebind<hwy::float16_t, Floats> halves;
    hn::StoreU(hn::BitCast(Halves(), hn::DemoteTo(halves, values)), Halves(),
               reinterpret_cast<std::uint16_t*>(out));
#else
    const Words words;
    const auto bits = hn::BitCast(words, values);
    const auto magnitude = hn::And(bits, hn::Set(words, 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    // Subtract 112 from the exponent, because the bias is smaller, and round. A carry out of the
    // significand correctly increases the exponent.
    const auto last = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1));
    const auto moved = hn::Add(magnitude, hn::Set(words, 0xC8000FFF));
    const auto normal = hn::ShiftRight<13>(hn::Add(moved, last));
    // The last bit of 0.5 is 2^-24, the unit of binary16's subnormal numbers. Adding 0.5 therefore
    // rounds to this unit.
    const auto half = hn::Set(Floats(), 0.5F);
    const auto sum = hn::Add(hn::BitCast(Floats(), magnitude), half);
    const auto subnormal = hn::Sub(hn::BitCast(words, sum), hn::BitCast(words, half));
    const auto quiet = hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 0x1FF)),
                              hn::Set(words, 0x7E00));
    const auto below = [&](std::uint32_t limit) HWY_ATTR {
      return hn::RebindMask(words, hn::Lt(hn::BitCast(SignedWords(), magnitude),
                                          hn::Set(SignedWords(), static_cast<int>(limit))));
    };
    auto result = hn::IfThenElse(below(0x38800000), subnormal, normal);          // 2^-14
    result = hn::IfThenElse(below(0x47800000), result, hn::Set(words, 0x7C00));  // 2^16
    result = hn::IfThenElse(is_nan(magnitude), quiet, result);
    store(hn::Or(result, sign), out);
#endif
  }
};

template <class To>
void round(const float* in, std::size_t count, std::byte* out) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  if (count >= lanes) {
    // The last vector overlaps the one before. Load it first, because `out` may be `in`, and the
    // loop then overwrites it.
    const auto last = hn::LoadU(floats, in + count - lanes);
    for (std::size_t i = 0; i + lanes < count; i += lanes) {
      To::round(hn::LoadU(floats, in + i), out + 2 * i);
    }
    return To::round(last, out + 2 * (count - lanes));
  }
  if (count == 0) return;
  HWY_ALIGN float few[hn::MaxLanes(floats)] = {};
  HWY_ALIGN std::byte rounded[2 * hn::MaxLanes(floats)];
  std::memcpy(few, in, count * sizeof(float));
  To::round(hn::Load(floats, few), rounded);
  std::memcpy(out, rounded, count * 2);
}

void round_to_f16(const float* in, std::size_t count, std::byte* out) {
  round<F16>(in, count, out);
}
void round_to_bf16(const float* in, std::size_t count, std::byte* out) {
  round<Bf16>(in, count, out);
}

}  // namespace
}  // namespace stfs::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace stfs {
namespace {

template <NarrowType kTo>
void to_8_bits(const float* in, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::byte>(to_narrow<kTo>(std::bit_cast<std::uint32_t>(in[i])));
  }
}

}  // namespace

HWY_EXPORT(round_to_f16);
HWY_EXPORT(round_to_bf16);

void f32_to_f16(const float* in, std::size_t count, std::byte* out) {
  const IeeeArithmetic ieee;
  HWY_DYNAMIC_DISPATCH(round_to_f16)(in, count, out);
}

void f32_to_bf16(const float* in, std::size_t count, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(round_to_bf16)(in, count, out);  // integer operations only
}

void f32_to_f8_e4m3(const float* in, std::size_t count, std::byte* out) {
  to_8_bits<kNarrowF8E4M3>(in, count, out);
}
void f32_to_f8_e5m2(const float* in, std::size_t count, std::byte* out) {
  to_8_bits<kNarrowF8E5M2>(in, count, out);
}
void f32_to_f8_e4m3_fnuz(const float* in, std::size_t count, std::byte* out) {
  to_8_bits<kNarrowF8E4M3Fnuz>(in, count, out);
}
void f32_to_f8_e5m2_fnuz(const float* in, std::size_t count, std::byte* out) {
  to_8_bits<kNarrowF8E5M2Fnuz>(in, count, out);
}

void f32_to_f32(const float* in, std::size_t count, std::byte* out) {
  if (count > 0) std::memcpy(out, in, count * sizeof(float));
}

void f32_to_f64(const float* in, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const double value = in[i];
    std::memcpy(out + i * sizeof value, &value, sizeof value);
  }
}

void to_f32_for(const TypeInfo& to, const TypeInfo& from, const std::byte* in, std::size_t count,
                float* out) {
  if (&from != &type_info(DType::kF64) || to.block_bytes >= sizeof(float)) {
    return from.to_f32(in, count, out);
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, in + i * sizeof bits, sizeof bits);
    out[i] = std::bit_cast<float>(to_odd_f32(bits));
  }
}

}  // namespace stfs

#endif
