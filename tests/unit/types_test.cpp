// Compares the table of types with the reference's names and sizes, and checks its consistency.
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

TEST(DType, MatchesNamesAndBitsOfReference) {
  for (const auto& [name, bits] : kAll) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(type_info(*dtype).bits(), bits) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
  }
}

TEST(DType, HasUniqueName) {
  std::set<std::string_view> names;
  for_each_type([&](DType dtype, const TypeInfo& info) {
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_EQ(dtype_from_name(info.name), dtype);
  });
}

TEST(DType, NameMatchesEnumerator) {
  EXPECT_EQ(dtype_name(DType::kBF16), "BF16");
  EXPECT_EQ(dtype_name(DType::kF8E4M3Fnuz), "F8_E4M3FNUZ");
  EXPECT_EQ(dtype_name(DType::kC64), "C64");
  EXPECT_EQ(dtype_name(DType::kU64), "U64");
}

TEST(DType, RejectsOtherNames) {
  for (const char* name :
       {"", "u8", "bf16", "U8 ", " U8", "BF", "BF166", "F128", "I4", "U4", "C128", "F8_E4M3FN"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

TEST(TypeInfo, NumpyItemSizeEqualsBlockSize) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.npy.empty()) return;
    EXPECT_EQ(info.block_elements, 1);
    EXPECT_EQ(std::stoi(std::string(info.npy.substr(2))), info.block_bytes);
    EXPECT_EQ(info.npy[0], info.block_bytes == 1 ? '|' : '<');
  });
}

TEST(TypeInfo, ConvertsOnlyRealTypesToF32) {
  for_each_type([](DType, const TypeInfo& info) {
    const bool is_real = info.kind == TypeKind::kFloat || info.kind == TypeKind::kQuantized;
    EXPECT_EQ(info.to_f32 != nullptr, is_real);
  });
}

TEST(TypeInfo, IntegersAndComplexNumbersHaveMachineSizes) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind == TypeKind::kFloat || info.kind == TypeKind::kQuantized) return;
    EXPECT_EQ(info.block_elements, 1);
    EXPECT_TRUE(std::set<int>({1, 2, 4, 8}).contains(info.block_bytes));
  });
}

TEST(TypeInfo, BlockIsSmallestWithWholeBytes) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind == TypeKind::kQuantized) return;
    EXPECT_EQ(info.bits() * info.block_elements, info.block_bytes * 8U);
    for (unsigned elements = 1; elements < info.block_elements; ++elements) {
      EXPECT_NE(info.bits() * elements % 8, 0U);
    }
  });
}

// Like the reference, stfs rejects sub-byte tensors that end inside a byte.
TEST(TypeInfo, CountsBytesOnlyIfElementsEndAtByte) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind == TypeKind::kQuantized) return;
    for (std::uint64_t elements = 0; elements < 100; ++elements) {
      const std::uint64_t bits = elements * info.bits();
      EXPECT_EQ(info.bytes_of(elements), bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt);
    }
  });
}

TEST(TypeInfo, CountsNoBytesIfBitCountOverflows64Bits) {
  for_each_type([](DType, const TypeInfo& info) {
    const std::uint64_t blocks = kMost / 8 / info.block_bytes;
    EXPECT_EQ(info.bytes_of(blocks * info.block_elements), blocks * info.block_bytes);
    EXPECT_EQ(info.bytes_of((blocks + 1) * info.block_elements), std::nullopt);
    EXPECT_EQ(info.bytes_of(kMost / info.block_elements * info.block_elements), std::nullopt);
  });
}

struct GgufType {
  std::uint32_t number;
  const char* name;
  unsigned block_elements, block_bytes;
};

// ggml's numbers, names and sizes (ggml_get_type_traits).
constexpr std::array<GgufType, 35> kGgufTypes{{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
}};

TEST(DType, MatchesNumbersAndBlocksOfGgml) {
  std::set<std::uint32_t> numbers;
  for (const GgufType& type : kGgufTypes) {
    numbers.insert(type.number);
    const auto dtype = dtype_from_gguf(type.number);
    ASSERT_TRUE(dtype) << type.number;
    EXPECT_EQ(dtype_name(*dtype), type.name);
    EXPECT_EQ(type_info(*dtype).block_elements, type.block_elements) << type.name;
    EXPECT_EQ(type_info(*dtype).block_bytes, type.block_bytes) << type.name;
  }
  for (std::uint32_t number = 0; number < 1000; ++number) {
    EXPECT_EQ(dtype_from_gguf(number).has_value(), numbers.contains(number)) << number;
  }
  EXPECT_EQ(dtype_from_gguf(0xFFFFFFFF), std::nullopt);
}

TEST(TypeInfo, QuantizedTypesHaveNoNumpyOrDlpackType) {
  for_each_type([](DType, const TypeInfo& info) {
    if (info.kind != TypeKind::kQuantized) return;
    EXPECT_EQ(info.npy, "");
    EXPECT_EQ(info.dlpack, TypeInfo::kNoDlpack);
  });
}

// A type that no format has.
constexpr TypeInfo kScaled{
    .name = "SCALED", .block_elements = 256, .block_bytes = 144, .kind = TypeKind::kQuantized};

TEST(TypeInfo, QuantizedTypesCountWholeBlocks) {
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
