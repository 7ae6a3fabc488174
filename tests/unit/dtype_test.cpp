#include "core/format/types.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>

namespace stfs::test {
namespace {

// The reference's names and bits.
constexpr std::array<std::pair<const char*, unsigned>, 22> kAll{
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

TEST(DType, HasTheNameAndTheBitsOfTheReference) {
  for (const auto& [name, bits] : kAll) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(dtype_bits(*dtype), bits) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
  }
}

TEST(DType, IsOneOf22) {
  EXPECT_EQ(kDTypeCount, 22);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
}

TEST(DType, MeansWhatItsEnumeratorSays) {
  EXPECT_EQ(dtype_name(DType::kBF16), "BF16");
  EXPECT_EQ(dtype_name(DType::kF8E4M3Fnuz), "F8_E4M3FNUZ");
  EXPECT_EQ(dtype_name(DType::kC64), "C64");
  EXPECT_EQ(dtype_name(DType::kU64), "U64");
}

TEST(DType, HasNoOtherName) {
  for (const char* name :
       {"", "u8", "bf16", "U8 ", " U8", "BF", "BF166", "F128", "I4", "U4", "C128", "F8_E4M3FN"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace stfs::test
