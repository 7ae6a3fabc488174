#include "core/layer/edit/cast.h"

#include "core/format/from_f32.h"
#include "core/format/ieee.h"
#include "core/format/narrow.h"
#include "core/recipe/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

namespace stfs {
namespace {

// A type of 8 bits: sign, exponent, significand.
struct Small {
  DType type;
  unsigned significand;  // bits
  unsigned bias;
  std::uint8_t largest;           // the code of the largest finite number
  std::uint8_t overflow;          // of what is larger, without the sign
  std::uint8_t nan;               // without the sign
  bool has_negative_zero = true;  // else its code is that of NaN
};
constexpr std::array<Small, 4> kSmall{{
    {DType::kF8E4M3, 3, 7, 0x7E, 0x7F, 0x7F},
    {DType::kF8E5M2, 2, 15, 0x7B, 0x7C, 0x7E},
    {DType::kF8E4M3Fnuz, 3, 8, 0x7F, 0x80, 0x80, false},
    {DType::kF8E5M2Fnuz, 2, 16, 0x7F, 0x80, 0x80, false},
}};

std::uint8_t to_small(const Small& type, std::uint32_t bits) {
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const auto with_sign = [&](std::uint32_t code) {
    if (!type.has_negative_zero && (code == 0 || code == 0x80)) {
      return static_cast<std::uint8_t>(code);
    }
    return static_cast<std::uint8_t>(sign | code);
  };
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return with_sign(type.nan);
  if (magnitude == 0x7F800000U) return with_sign(type.overflow);
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t least = 128 - type.bias;  // of a normal number
  const std::uint32_t cut = 23 - type.significand;
  std::uint32_t kept = 0, rest = 0, tie = 0;
  if (exponent >= least) {
    kept = (magnitude >> cut) - ((least - 1) << type.significand);
    rest = magnitude & ((1U << cut) - 1);
    tie = 1U << (cut - 1);
  } else {
    const std::uint32_t shift = cut + (least - exponent);
    if (exponent == 0 || shift > 24) return with_sign(0);  // under half of the smallest number
    const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
    kept = significand >> shift;
    rest = significand & ((1U << shift) - 1);
    tie = 1U << (shift - 1);
  }
  if (rest > tie || (rest == tie && (kept & 1) != 0)) ++kept;
  return with_sign(kept > type.largest ? type.overflow : kept);
}

const Small* small_type(DType type) {
  const auto* const row = std::ranges::find(kSmall, type, &Small::type);
  return row == kSmall.end() ? nullptr : row;
}

class Cast : public Elements {
 public:
  Cast(Content raw, const TypeInfo& from, DType to, std::uint64_t elements)
      : Elements(std::move(raw), from, whole_run(elements), type_info(to).block_bytes),
        to_(to),
        small_(small_type(to)),
        is_from_f64_(&from == &type_info(DType::kF64)) {}

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const IeeeArithmetic ieee;
    return fill(offset, out,
                [this](const TypeInfo& from, std::span<const std::byte> blocks, std::size_t count,
                       std::byte* to) { convert(from, blocks, count, to); });
  }

 private:
  static constexpr std::size_t kSome = 1024;

  void convert(const TypeInfo& from, std::span<const std::byte> blocks, std::size_t count,
               std::byte* out) const {
    const std::size_t width = type_info(to_).block_bytes;
    std::array<float, kSome> values{};
    for (std::size_t i = 0; i < count;) {
      const std::size_t some = std::min(step_of(from), count - i);
      const std::byte* const in = blocks.data() + i / from.block_elements * from.block_bytes;
      if (is_from_f64_ && &from == &type_info(DType::kF64) && width < sizeof(float)) {
        odd_floats(in, some, values.data());
      } else {
        from.to_f32(in, some, values.data());
      }
      write(values.data(), some, out + i * width);
      i += some;
    }
  }

  static std::size_t step_of(const TypeInfo& from) {
    return kSome / from.block_elements * from.block_elements;
  }

  // Binary64 rounded to odd: rounding again to a narrower type gives what rounding once does.
  static void odd_floats(const std::byte* in, std::size_t count, float* out) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, in + i * sizeof bits, sizeof bits);
      out[i] = std::bit_cast<float>(to_odd_f32(bits));
    }
  }

  void write(const float* values, std::size_t count, std::byte* out) const {
    if (small_ != nullptr) {
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = std::byte{to_small(*small_, std::bit_cast<std::uint32_t>(values[i]))};
      }
    } else if (to_ == DType::kBF16) {
      f32_to_bf16(values, count, out);
    } else if (to_ == DType::kF16) {
      f32_to_f16(values, count, out);
    } else if (to_ == DType::kF32) {
      std::memcpy(out, values, count * sizeof(float));
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        const double value = values[i];
        std::memcpy(out + i * sizeof value, &value, sizeof value);
      }
    }
  }

  DType to_;
  const Small* small_;
  bool is_from_f64_;
};

}  // namespace

bool can_cast_to(DType type) {
  constexpr DType kLarge[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  return small_type(type) != nullptr || std::ranges::find(kLarge, type) != std::end(kLarge);
}

std::unique_ptr<const Producer> cast(Content raw, DType from, DType to, std::uint64_t elements) {
  return std::make_unique<Cast>(std::move(raw), type_info(from), to, elements);
}

}  // namespace stfs
