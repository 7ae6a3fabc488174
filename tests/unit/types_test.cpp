// The table of types: each row against the reference's names and sizes, and against itself.
#include "core/format/types.h"

#include "tests/unit/most.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
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

template <class Check>
void for_each_type(const Check& check) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    check(dtype, type_info(dtype));
  }
}

TEST(DType, HasTheNameAndTheBitsOfTheReference) {
  for (const auto& [name, bits] : kAll) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(type_info(*dtype).bits(), bits) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
  }
}

TEST(DType, HasANameOfItsOwn) {
  std::set<std::string_view> names;
  for_each_type([&](DType dtype, const TypeInfo& info) {
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_EQ(dtype_from_name(info.name), dtype);
  });
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

TEST(TypeInfo, GivesAnElementOfNumpyTheSizeOfABlock) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.npy.empty()) return;
    EXPECT_EQ(info.block_elements, 1);
    EXPECT_EQ(std::stoi(std::string(info.npy.substr(2))), info.block_bytes);
    EXPECT_EQ(info.npy[0], info.block_bytes == 1 ? '|' : '<');
  });
}

TEST(TypeInfo, ConvertsTheKindsOfRealNumbersToBinary32AndNoOthers) {
  for_each_type([](DType, const TypeInfo& info) {
    const bool is_real = info.kind == TypeKind::kFloat || info.kind == TypeKind::kQuantized;
    EXPECT_EQ(info.to_f32 != nullptr, is_real);
  });
}

TEST(TypeInfo, GivesIntegersAndComplexNumbersASizeThatProcessorsHave) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind == TypeKind::kFloat || info.kind == TypeKind::kQuantized) return;
    EXPECT_EQ(info.block_elements, 1);
    EXPECT_TRUE(std::set<int>({1, 2, 4, 8}).contains(info.block_bytes));
  });
}

TEST(TypeInfo, GivesElementsWithBitsOfTheirOwnTheSmallestBlockOfWholeBytes) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind == TypeKind::kQuantized) return;
    EXPECT_EQ(info.bits() * info.block_elements, info.block_bytes * 8U);
    for (unsigned elements = 1; elements < info.block_elements; ++elements) {
      EXPECT_NE(info.bits() * elements % 8, 0U);
    }
  });
}

// As the reference does, refuses sub-byte tensors that end inside a byte.
TEST(TypeInfo, CountsBytesWhereElementsEndAtAByte) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind == TypeKind::kQuantized) return;
    for (std::uint64_t elements = 0; elements < 100; ++elements) {
      const std::uint64_t bits = elements * info.bits();
      EXPECT_EQ(info.bytes_of(elements), bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt);
    }
  });
}

TEST(TypeInfo, CountsNoBytesWhoseBitsExceed64Bits) {
  for_each_type([](DType, const TypeInfo& info) {
    const std::uint64_t blocks = kMost / 8 / info.block_bytes;
    EXPECT_EQ(info.bytes_of(blocks * info.block_elements), blocks * info.block_bytes);
    EXPECT_EQ(info.bytes_of((blocks + 1) * info.block_elements), std::nullopt);
    EXPECT_EQ(info.bytes_of(kMost / info.block_elements * info.block_elements), std::nullopt);
  });
}

// A type that is in no format yet.
constexpr TypeInfo kScaled{
    .name = "SCALED", .block_elements = 256, .block_bytes = 144, .kind = TypeKind::kQuantized};

TEST(TypeInfo, OfABlockThatHoldsScalesCountsWholeBlocks) {
  EXPECT_EQ(kScaled.bytes_of(0), 0U);
  EXPECT_EQ(kScaled.bytes_of(768), 432U);
  EXPECT_EQ(kScaled.bytes_of(767), std::nullopt);
  EXPECT_EQ(kScaled.bytes_of(128), std::nullopt) << "72 bytes, but half of a block";
  EXPECT_EQ(kScaled.elements_in(432), 768U);
  EXPECT_EQ(kScaled.offset_of(512), 288U);
  EXPECT_EQ(kScaled.offset_of(767), 288U);
}

}  // namespace
}  // namespace stfs::test
