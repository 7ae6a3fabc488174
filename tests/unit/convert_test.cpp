// Compares conversions with a reference that is written from the definitions: it computes sign,
// exponent and significand with ldexp. Values are compared as bits.
#include "core/base/vectors.h"
#include "core/format/to_f32.h"
#include "core/format/types.h"
#include "core/recipe/elements.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/guarded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

// The bits of a binary32.
using Bits = std::uint32_t;

constexpr Bits kInfinity = 0x7F800000;
constexpr Bits kQuietNan = 0x7FC00000;
constexpr Bits kSign = 0x80000000;

// The layout of a small format, from its specification.
struct Format {
  unsigned exponent_bits, significand_bits;
  int bias;
};

// Returns a finite value: (-1)^s 2^(e-bias) 1.m, or (-1)^s 2^(1-bias) 0.m if e is 0.
Bits finite(std::uint32_t code, Format format) {
  const std::uint32_t significand = code & ((1U << format.significand_bits) - 1);
  const std::uint32_t exponent =
      code >> format.significand_bits & ((1U << format.exponent_bits) - 1);
  const bool is_negative = code >> (format.significand_bits + format.exponent_bits) != 0;
  const std::uint32_t implicit = exponent == 0 ? 0 : 1U << format.significand_bits;
  const int scale = static_cast<int>(exponent == 0 ? 1 : exponent) - format.bias -
                    static_cast<int>(format.significand_bits);
  const double value = std::ldexp(static_cast<double>(implicit + significand), scale);
  return std::bit_cast<Bits>(static_cast<float>(is_negative ? -value : value));
}

// IEEE 754 interchange formats: the largest exponent is infinity and NaN; a NaN becomes quiet.
Bits ieee(std::uint32_t code, Format format) {
  const std::uint32_t significand = code & ((1U << format.significand_bits) - 1);
  const std::uint32_t largest = (1U << format.exponent_bits) - 1;
  if ((code >> format.significand_bits & largest) != largest) return finite(code, format);
  const Bits sign = code >> (format.significand_bits + format.exponent_bits) != 0 ? kSign : 0;
  if (significand == 0) return sign | kInfinity;
  return sign | kQuietNan | significand << (23 - format.significand_bits);
}

constexpr Format kBinary16{5, 10, 15};

Bits reference(DType dtype, std::uint32_t code) {
  switch (dtype) {
    case DType::kF4: return finite(code, {2, 1, 1});
    case DType::kF6E2M3: return finite(code, {2, 3, 1});
    case DType::kF6E3M2: return finite(code, {3, 2, 3});
    case DType::kF8E5M2: return ieee(code, {5, 2, 15});
    case DType::kF8E4M3:
      if ((code & 0x7F) == 0x7F) return kQuietNan | (code & 0x80) << 24;
      return finite(code, {4, 3, 7});
    case DType::kF8E4M3Fnuz: return code == 0x80 ? kQuietNan : finite(code, {4, 3, 8});
    case DType::kF8E5M2Fnuz: return code == 0x80 ? kQuietNan : finite(code, {5, 2, 16});
    case DType::kF8E8M0:
      if (code == 255) return kQuietNan;
      return std::bit_cast<Bits>(static_cast<float>(std::ldexp(1.0, static_cast<int>(code) - 127)));
    case DType::kF16: return ieee(code, kBinary16);
    case DType::kBF16: return code << 16;
    default: ADD_FAILURE() << "no reference"; return 0;
  }
}

// Packs codes from the lowest bit up.
std::string packed(const std::vector<std::uint32_t>& codes, unsigned bits) {
  std::string out((codes.size() * bits + 7) / 8, '\0');
  for (std::size_t i = 0; i < codes.size(); ++i) {
    for (unsigned bit = 0; bit < bits; ++bit) {
      if ((codes[i] >> bit & 1) == 0) continue;
      const std::size_t at = i * bits + bit;
      out[at / 8] = static_cast<char>(out[at / 8] | 1 << at % 8);
    }
  }
  return out;
}

std::vector<Bits> converted(DType dtype, std::string_view bytes, std::size_t count) {
  std::vector<float> out(count);
  type_info(dtype).to_f32(std::as_bytes(std::span(bytes)).data(), count, out.data());
  std::vector<Bits> bits(count);
  if (count > 0) std::memcpy(bits.data(), out.data(), count * sizeof(float));
  return bits;
}

const std::vector<DType> kSmall{
    DType::kF4,     DType::kF6E2M3,     DType::kF6E3M2,     DType::kF8E5M2, DType::kF8E4M3,
    DType::kF8E8M0, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz, DType::kF16,    DType::kBF16};

std::vector<std::uint32_t> all_codes(DType dtype) {
  std::vector<std::uint32_t> codes(std::size_t{1} << type_info(dtype).bits());
  for (std::uint32_t i = 0; i < codes.size(); ++i) codes[i] = i;
  return codes;
}

TEST(Convert, AllCodesOfSmallTypesMatchDefinition) {
  for (const DType dtype : kSmall) {
    const std::vector<std::uint32_t> codes = all_codes(dtype);
    const std::string bytes = packed(codes, type_info(dtype).bits());
    with_each_target([&](const char* vectors) {
      const std::vector<Bits> values = converted(dtype, bytes, codes.size());
      for (const std::uint32_t code : codes) {
        ASSERT_EQ(values[code], reference(dtype, code))
            << dtype_name(dtype) << " code " << std::hex << code << " with " << vectors;
      }
    });
  }
}

// These values are printed in the OCP specifications, so they also test the reference.
TEST(Convert, MatchesValuesPrintedInSpecifications) {
  const auto value = [](DType dtype, std::uint32_t code) {
    const std::string bytes = packed({code, 0, 0, 0}, type_info(dtype).bits());
    return std::bit_cast<float>(converted(dtype, bytes, 4)[0]);
  };
  const std::vector<float> fours{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(value(DType::kF4, code), fours[code]);
    EXPECT_EQ(value(DType::kF4, code + 8), -fours[code]);
    EXPECT_EQ(std::signbit(value(DType::kF4, code + 8)), true);
  }
  EXPECT_EQ(value(DType::kF6E2M3, 0x1F), 7.5F);
  EXPECT_EQ(value(DType::kF6E2M3, 0x01), 0.125F);
  EXPECT_EQ(value(DType::kF6E3M2, 0x1F), 28.0F);
  EXPECT_EQ(value(DType::kF6E3M2, 0x01), 0.0625F);
  EXPECT_EQ(value(DType::kF8E4M3, 0x7E), 448.0F);
  EXPECT_EQ(value(DType::kF8E4M3, 0x01), std::ldexp(1.0F, -9));
  EXPECT_EQ(value(DType::kF8E5M2, 0x7B), 57344.0F);
  EXPECT_EQ(value(DType::kF8E5M2, 0x01), std::ldexp(1.0F, -16));
  EXPECT_EQ(value(DType::kF8E5M2, 0xFC), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(value(DType::kF8E4M3Fnuz, 0x7F), 240.0F);
  EXPECT_EQ(value(DType::kF8E4M3Fnuz, 0x01), std::ldexp(1.0F, -10));
  EXPECT_EQ(value(DType::kF8E5M2Fnuz, 0x7F), 57344.0F);
  EXPECT_EQ(value(DType::kF8E5M2Fnuz, 0x01), std::ldexp(1.0F, -17));
  EXPECT_EQ(value(DType::kF8E8M0, 0), std::ldexp(1.0F, -127));
  EXPECT_EQ(value(DType::kF8E8M0, 127), 1.0F);
  EXPECT_EQ(value(DType::kF8E8M0, 254), std::ldexp(1.0F, 127));
  EXPECT_EQ(value(DType::kF16, 0x7BFF), 65504.0F);
  EXPECT_EQ(value(DType::kF16, 0x0001), std::ldexp(1.0F, -24));
}

TEST(Convert, HasNoF32FormIfSizeOverflows) {
  constexpr std::uint64_t kWraps = (std::uint64_t{1} << 62) + 128;  // wraps to 512 bytes
  EXPECT_FALSE(has_f32(DType::kQ1_0, kWraps));
  EXPECT_FALSE(has_f32(DType::kU8, 1));
  EXPECT_TRUE(has_f32(DType::kQ1_0, std::uint64_t{1} << 60));
}

TEST(Convert, KeepsBitsOfF32) {
  const std::vector<Bits> bits{0,          kSign,      1,          0x7FFFFF,  0x7F800001,
                               0xFFBFFFFF, kQuietNan,  0x7FFFFFFF, kInfinity, kSign | kInfinity,
                               0x3F800000, 0x12345678, 0xDEADBEEF};
  const std::string bytes(reinterpret_cast<const char*>(bits.data()), bits.size() * 4);

  EXPECT_EQ(converted(DType::kF32, bytes, bits.size()), bits);
}

// Returns F64 values. The reference is a C++ conversion, which rounds like IEEE 754.
std::vector<std::uint64_t> doubles() {
  std::vector<std::uint64_t> bits;
  const auto add = [&](double value) {
    for (const double around :
         {value, std::nextafter(value, 1e300), std::nextafter(value, -1e300), -value}) {
      bits.push_back(std::bit_cast<std::uint64_t>(around));
    }
  };
  for (const float value : {0.0F, 1.0F, FLT_MIN, FLT_MAX, FLT_TRUE_MIN, 1.5F, 16777216.0F, 3.1F}) {
    const double low = value;
    const double high = std::nextafter(value, 2 * value + 1);
    add(low);
    add((low + (std::isinf(high) ? std::ldexp(1.0, 128) : high)) / 2);  // a tie
  }
  for (int exponent = -152; exponent <= -124; ++exponent) {  // subnormal results
    for (const double factor : {1.0, 1.25, 1.5, 1.75, 1.0 + 0x1p-24, 1.0 + 0x3p-24}) {
      add(std::ldexp(factor, exponent));
    }
  }
  for (const double value : {std::ldexp(1.0, 128), 0x1.ffffffp127, 1e300, DBL_MAX, DBL_MIN,
                             DBL_TRUE_MIN, 1e-46, 0x1p-150, 0x1.8p-149}) {
    add(value);
  }
  for (const std::uint64_t special :
       {0x7FF0000000000000ULL, 0xFFF0000000000000ULL, 0x7FF8000000000000ULL, 0xFFF8000000000001ULL,
        0x7FF0000000000001ULL, 0xFFF4567890ABCDEFULL, 0x7FFFFFFFFFFFFFFFULL}) {
    bits.push_back(special);
  }
  RandomBytes random(5);
  for (int i = 0; i < 200'000; ++i) bits.push_back(random.next());
  for (int i = 0; i < 200'000; ++i) {  // near the range of binary32
    const std::uint64_t exponent = 1023 - 155 + random.next() % 290;
    bits.push_back((random.next() & 0x800FFFFFFFFFFFFFULL) | exponent << 52);
  }
  return bits;
}

TEST(Convert, RoundsF64ToNearestTiesToEven) {
  const std::vector<std::uint64_t> in = doubles();
  const std::string bytes(reinterpret_cast<const char*>(in.data()), in.size() * 8);

  with_each_target([&](const char* vectors) {
    const std::vector<Bits> values = converted(DType::kF64, bytes, in.size());
    for (std::size_t i = 0; i < in.size(); ++i) {
      Bits expected = std::bit_cast<Bits>(static_cast<float>(std::bit_cast<double>(in[i])));
      if (std::isnan(
              std::bit_cast<double>(in[i]))) {  // keeps the sign and the payload's upper bits
        const auto payload = static_cast<Bits>(in[i] >> 29 & 0x3FFFFF);
        expected = static_cast<Bits>(in[i] >> 32 & kSign) | kQuietNan | payload;
      }
      ASSERT_EQ(values[i], expected) << std::hex << in[i] << " with " << vectors;
    }
  });
}

TEST(Convert, RoundsBoundariesOfF64LikeIeee754) {
  const auto value = [](double wide) {
    const std::string bytes(reinterpret_cast<const char*>(&wide), 8);
    return std::bit_cast<float>(converted(DType::kF64, bytes, 1)[0]);
  };
  EXPECT_EQ(value(0x1.ffffffp127), std::numeric_limits<float>::infinity()) << "a tie rounds up";
  EXPECT_EQ(value(std::nextafter(0x1.ffffffp127, 0)), FLT_MAX);
  EXPECT_EQ(value(0x1p-150), 0.0F) << "a tie rounds to even";
  EXPECT_EQ(value(std::nextafter(0x1p-150, 1)), FLT_TRUE_MIN);
  EXPECT_EQ(value(1 + 0x1p-24), 1.0F);
  EXPECT_EQ(value(1 + 0x3p-24), 1 + 0x1p-22F);
}

const std::vector<DType> kFloatingTypes{DType::kF4,         DType::kF6E2M3, DType::kF6E3M2,
                                        DType::kF8E5M2,     DType::kF8E4M3, DType::kF8E8M0,
                                        DType::kF16,        DType::kBF16,   DType::kF8E4M3Fnuz,
                                        DType::kF8E5M2Fnuz, DType::kF32,    DType::kF64};

TEST(Convert, ConvertsOnlyFloatingTypes) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (type_info(dtype).kind == TypeKind::kQuantized) continue;
    const bool is_floating = std::ranges::find(kFloatingTypes, dtype) != kFloatingTypes.end();
    EXPECT_EQ(type_info(dtype).to_f32 != nullptr, is_floating) << dtype_name(dtype);
  }
}

TEST(Convert, AcceptsAnyLengthAndAlignmentWithoutExtraWrites) {
  RandomBytes random(17);
  for (const DType dtype : kFloatingTypes) {
    const unsigned bits = type_info(dtype).bits();
    for (std::size_t length = 0; length <= 70; ++length) {
      const std::size_t bytes = (length * bits + 7) / 8;
      const std::string data = random.bytes(bytes);
      const std::vector<Bits> expected = converted(dtype, data, length);
      for (std::size_t alignment = 0; alignment < 9; ++alignment) {
        // Exactly as large as needed, so that a sanitizer finds an overrun.
        std::vector<char> in(alignment + bytes);
        std::copy(data.begin(), data.end(), in.begin() + static_cast<std::ptrdiff_t>(alignment));
        with_each_target([&](const char*) {
          std::vector<float> out(length + 2, 77.0F);
          type_info(dtype).to_f32(std::as_bytes(std::span(in)).data() + alignment, length,
                                  out.data() + 1);
          ASSERT_EQ(out.front(), 77.0F);
          ASSERT_EQ(out.back(), 77.0F);
          ASSERT_TRUE(length == 0 || std::memcmp(out.data() + 1, expected.data(), length * 4) == 0)
              << dtype_name(dtype) << " length " << length << " alignment " << alignment;
        });
      }
    }
  }
}

TEST(Convert, DoesNotReadOutsideElements) {
  RandomBytes random(19);
  for (const DType dtype : kFloatingTypes) {
    for (const std::size_t length : {0U, 1U, 2U, 15U, 16U, 17U, 33U, 1000U}) {
      const std::size_t bytes = (length * type_info(dtype).bits() + 7) / 8;
      const std::string data = random.bytes(bytes);
      const std::vector<Bits> expected = converted(dtype, data, length);
      for (const auto flush : {Guarded::Flush::kBegin, Guarded::Flush::kEnd}) {
        const Guarded in(std::as_bytes(std::span(data)), flush);
        const Guarded out(length * sizeof(float), flush);
        with_each_target([&](const char*) {
          type_info(dtype).to_f32(in.data(), length, reinterpret_cast<float*>(out.data()));
          EXPECT_TRUE(length == 0 || std::memcmp(out.data(), expected.data(), length * 4) == 0)
              << dtype_name(dtype) << " length " << length;
        });
      }
    }
  }
}

#if defined(__x86_64__)
TEST(Convert, IgnoresRoundingModeOfThread) {
  RandomBytes random(29);
  for (const DType dtype : kFloatingTypes) {
    const std::size_t count =
        100'008;  // every code of 16 bits, and every pair of codes of small types
    const std::string data = random.bytes(count * type_info(dtype).bits() / 8);
    const std::vector<Bits> expected = converted(dtype, data, count);
    std::vector<float> values(count);
    {
      const OtherArithmetic other;
      type_info(dtype).to_f32(std::as_bytes(std::span(data)).data(), count, values.data());
    }
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), count * 4), 0) << dtype_name(dtype);
  }
}
#endif

// Checks that ranges read in any order match the same ranges of the whole.
void check_parts(const TypeInfo& type, const std::string& data, std::uint64_t count,
                 RandomBytes& random) {
  Content raw;
  raw.literal(data);
  const std::unique_ptr<const Producer> producer = as_f32(std::move(raw), type, whole_run(count));
  std::string whole(count * sizeof(float), '\0');
  std::vector<float> values(count);
  type.to_f32(std::as_bytes(std::span(data)).data(), count, values.data());
  if (count > 0) std::memcpy(whole.data(), values.data(), whole.size());

  ASSERT_EQ(producer->size(), whole.size());
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t offset = round == 0 ? 0 : random.next() % (whole.size() + 1);
    std::uint64_t length = whole.size() - offset;
    if (round > 1 && length > 0) length = random.next() % std::min<std::uint64_t>(length, 9999);
    std::string part(length, '\x55');
    ASSERT_EQ(producer->produce(offset, std::as_writable_bytes(std::span(part))), 0);
    ASSERT_TRUE(part == whole.substr(offset, length))
        << type.name << " of " << count << ": " << length << " bytes at " << offset;
  }
}

TEST(AsF32, ReadsAnyByteRange) {
  RandomBytes random(23);
  for (const DType dtype : kFloatingTypes) {
    for (const std::uint64_t count :
         {0ULL, 1ULL, 2ULL, 3ULL, 5ULL, 7ULL, 63ULL, 1001ULL, 32767ULL, 32769ULL, 100'003ULL}) {
      const TypeInfo& type = type_info(dtype);
      const std::uint64_t in_blocks = count / type.block_elements * type.block_elements;
      check_parts(type, random.bytes(type.offset_of(in_blocks)), in_blocks, random);
    }
  }
}

// Converts blocks of 32 elements: a scale, and a signed byte for each element.
void scaled_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  ASSERT_EQ(elements % 32, 0U) << "not whole blocks";
  for (std::size_t i = 0; i < elements; ++i) {
    const std::byte* block = blocks + i / 32 * 34;
    std::int16_t scale = 0;
    std::memcpy(&scale, block, sizeof scale);
    out[i] = static_cast<float>(scale) * static_cast<std::int8_t>(block[2 + i % 32]);
  }
}

TEST(AsF32, ReadsAnyByteRangeOfScaledBlocks) {
  static constexpr TypeInfo kScaled{.name = "SCALED",
                                    .block_elements = 32,
                                    .block_bytes = 34,
                                    .kind = TypeKind::kQuantized,
                                    .to_f32 = scaled_to_f32};
  RandomBytes random(29);
  for (const std::uint64_t blocks : {0ULL, 1ULL, 2ULL, 7ULL, 1445ULL, 1446ULL, 5000ULL}) {
    check_parts(kScaled, random.bytes(blocks * 34), blocks * 32, random);
  }
}

class FailingProducer : public Producer {
 public:
  std::uint64_t size() const override { return 100; }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}
  int produce(std::uint64_t, std::span<std::byte>) const override { return EIO; }
};

TEST(AsF32, ReturnsErrorOfSource) {
  Content raw;
  raw.production(std::make_unique<FailingProducer>());
  const auto producer = as_f32(std::move(raw), type_info(DType::kBF16), whole_run(50));
  std::vector<std::byte> out(4);

  EXPECT_EQ(producer->produce(0, out), EIO);
}

}  // namespace
}  // namespace stfs::test
