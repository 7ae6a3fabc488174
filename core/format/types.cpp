#include "core/format/types.h"

#include "core/format/block_decoders.h"
#include "core/format/from_f32.h"
#include "core/format/to_f32.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

struct Row {
  DType dtype;
  TypeInfo info;
};

template <DType dtype>
void number(const std::byte* in, std::size_t elements, float* out) {
  float_to_f32(dtype, in, elements, out);
}
template <DType dtype>
void blocks(const std::byte* in, std::size_t elements, float* out) {
  blocks_to_f32(dtype, in, elements, out);
}

using enum TypeKind;
constexpr auto kNo = TypeInfo::kNotInGguf;
constexpr auto kNone = TypeInfo::kNoDlpack;

// clang-format off
constexpr std::array<Row, kDTypeCount> kRows{{
    //                     name        block: elements, bytes, kind, NumPy, DLPack, GGUF, to binary32, from binary32
    {DType::kBool,       {"BOOL",        1, 1, kBool,     "|b1",  6, kNo, nullptr}},
    {DType::kF4,         {"F4",          2, 1, kFloat,    "",    17, kNo, number<DType::kF4>}},
    {DType::kF6E2M3,     {"F6_E2M3",     4, 3, kFloat,    "",    15, kNo, number<DType::kF6E2M3>}},
    {DType::kF6E3M2,     {"F6_E3M2",     4, 3, kFloat,    "",    16, kNo, number<DType::kF6E3M2>}},
    {DType::kU8,         {"U8",          1, 1, kUnsigned, "|u1",  1, kNo, nullptr}},
    {DType::kI8,         {"I8",          1, 1, kSigned,   "|i1",  0,  24, nullptr}},
    {DType::kF8E5M2,     {"F8_E5M2",     1, 1, kFloat,    "|V1", 12, kNo, number<DType::kF8E5M2>, f32_to_f8_e5m2}},
    {DType::kF8E4M3,     {"F8_E4M3",     1, 1, kFloat,    "|V1", 10, kNo, number<DType::kF8E4M3>, f32_to_f8_e4m3}},
    {DType::kF8E8M0,     {"F8_E8M0",     1, 1, kFloat,    "|V1", 14, kNo, number<DType::kF8E8M0>}},
    {DType::kF8E4M3Fnuz, {"F8_E4M3FNUZ", 1, 1, kFloat,    "|V1", 11, kNo, number<DType::kF8E4M3Fnuz>, f32_to_f8_e4m3_fnuz}},
    {DType::kF8E5M2Fnuz, {"F8_E5M2FNUZ", 1, 1, kFloat,    "|V1", 13, kNo, number<DType::kF8E5M2Fnuz>, f32_to_f8_e5m2_fnuz}},
    {DType::kI16,        {"I16",         1, 2, kSigned,   "<i2",  0,  25, nullptr}},
    {DType::kU16,        {"U16",         1, 2, kUnsigned, "<u2",  1, kNo, nullptr}},
    {DType::kF16,        {"F16",         1, 2, kFloat,    "<f2",  2,   1, number<DType::kF16>, f32_to_f16}},
    {DType::kBF16,       {"BF16",        1, 2, kFloat,    "<V2",  4,  30, number<DType::kBF16>, f32_to_bf16}},
    {DType::kI32,        {"I32",         1, 4, kSigned,   "<i4",  0,  26, nullptr}},
    {DType::kU32,        {"U32",         1, 4, kUnsigned, "<u4",  1, kNo, nullptr}},
    {DType::kF32,        {"F32",         1, 4, kFloat,    "<f4",  2,   0, number<DType::kF32>, f32_to_f32}},
    {DType::kC64,        {"C64",         1, 8, kComplex,  "<c8",  5, kNo, nullptr}},
    {DType::kF64,        {"F64",         1, 8, kFloat,    "<f8",  2,  28, number<DType::kF64>, f32_to_f64}},
    {DType::kI64,        {"I64",         1, 8, kSigned,   "<i8",  0,  27, nullptr}},
    {DType::kU64,        {"U64",         1, 8, kUnsigned, "<u8",  1, kNo, nullptr}},

    {DType::kQ4_0,      {"Q4_0",        32,  18, kQuantized, "", kNone,  2, blocks<DType::kQ4_0>}},
    {DType::kQ4_1,      {"Q4_1",        32,  20, kQuantized, "", kNone,  3, blocks<DType::kQ4_1>}},
    {DType::kQ5_0,      {"Q5_0",        32,  22, kQuantized, "", kNone,  6, blocks<DType::kQ5_0>}},
    {DType::kQ5_1,      {"Q5_1",        32,  24, kQuantized, "", kNone,  7, blocks<DType::kQ5_1>}},
    {DType::kQ8_0,      {"Q8_0",        32,  34, kQuantized, "", kNone,  8, blocks<DType::kQ8_0>}},
    {DType::kQ8_1,      {"Q8_1",        32,  36, kQuantized, "", kNone,  9, blocks<DType::kQ8_1>}},
    {DType::kQ2_K,      {"Q2_K",       256,  84, kQuantized, "", kNone, 10, blocks<DType::kQ2_K>}},
    {DType::kQ3_K,      {"Q3_K",       256, 110, kQuantized, "", kNone, 11, blocks<DType::kQ3_K>}},
    {DType::kQ4_K,      {"Q4_K",       256, 144, kQuantized, "", kNone, 12, blocks<DType::kQ4_K>}},
    {DType::kQ5_K,      {"Q5_K",       256, 176, kQuantized, "", kNone, 13, blocks<DType::kQ5_K>}},
    {DType::kQ6_K,      {"Q6_K",       256, 210, kQuantized, "", kNone, 14, blocks<DType::kQ6_K>}},
    {DType::kQ8_K,      {"Q8_K",       256, 292, kQuantized, "", kNone, 15, blocks<DType::kQ8_K>}},
    {DType::kIQ2_XXS,   {"IQ2_XXS",    256,  66, kQuantized, "", kNone, 16, blocks<DType::kIQ2_XXS>}},
    {DType::kIQ2_XS,    {"IQ2_XS",     256,  74, kQuantized, "", kNone, 17, blocks<DType::kIQ2_XS>}},
    {DType::kIQ3_XXS,   {"IQ3_XXS",    256,  98, kQuantized, "", kNone, 18, blocks<DType::kIQ3_XXS>}},
    {DType::kIQ1_S,     {"IQ1_S",      256,  50, kQuantized, "", kNone, 19, blocks<DType::kIQ1_S>}},
    {DType::kIQ4_NL,    {"IQ4_NL",      32,  18, kQuantized, "", kNone, 20, blocks<DType::kIQ4_NL>}},
    {DType::kIQ3_S,     {"IQ3_S",      256, 110, kQuantized, "", kNone, 21, blocks<DType::kIQ3_S>}},
    {DType::kIQ2_S,     {"IQ2_S",      256,  82, kQuantized, "", kNone, 22, blocks<DType::kIQ2_S>}},
    {DType::kIQ4_XS,    {"IQ4_XS",     256, 136, kQuantized, "", kNone, 23, blocks<DType::kIQ4_XS>}},
    {DType::kIQ1_M,     {"IQ1_M",      256,  56, kQuantized, "", kNone, 29, blocks<DType::kIQ1_M>}},
    {DType::kTQ1_0,     {"TQ1_0",      256,  54, kQuantized, "", kNone, 34, blocks<DType::kTQ1_0>}},
    {DType::kTQ2_0,     {"TQ2_0",      256,  66, kQuantized, "", kNone, 35, blocks<DType::kTQ2_0>}},
    {DType::kMXFP4,     {"MXFP4",       32,  17, kQuantized, "", kNone, 39, blocks<DType::kMXFP4>}},
    {DType::kNVFP4,     {"NVFP4",       64,  36, kQuantized, "", kNone, 40, blocks<DType::kNVFP4>}},
    {DType::kQ1_0,      {"Q1_0",       128,  18, kQuantized, "", kNone, 41, blocks<DType::kQ1_0>}},
    {DType::kQ2_0,      {"Q2_0",        64,  18, kQuantized, "", kNone, 42, blocks<DType::kQ2_0>}},
}};
// clang-format on

constexpr bool are_in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(are_in_order(), "the rows are in the order of the enumerators of DType");

}  // namespace

const TypeInfo& type_info(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].info; }

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto row = std::ranges::find(kRows, name, [](const Row& r) { return r.info.name; });
  if (row == kRows.end()) return std::nullopt;
  return row->dtype;
}

std::optional<DType> dtype_from_gguf(std::uint32_t number) {
  const auto row = std::ranges::find(kRows, number, [](const Row& r) { return r.info.gguf; });
  if (row == kRows.end() || number == TypeInfo::kNotInGguf) return std::nullopt;
  return row->dtype;
}

}  // namespace stfs
