#include "core/format/types.h"

#include "core/format/to_f32.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

struct Row {
  DType dtype;
  TypeInfo info;
};

using enum TypeKind;

// clang-format off
constexpr std::array<Row, kDTypeCount> kRows{{
    //                     name        block: elements, bytes, kind, NumPy, DLPack, to binary32
    {DType::kBool,       {"BOOL",        1, 1, kBool,     "|b1",  6, nullptr}},
    {DType::kF4,         {"F4",          2, 1, kFloat,    "",    17, f4_to_f32}},
    {DType::kF6E2M3,     {"F6_E2M3",     4, 3, kFloat,    "",    15, f6_e2m3_to_f32}},
    {DType::kF6E3M2,     {"F6_E3M2",     4, 3, kFloat,    "",    16, f6_e3m2_to_f32}},
    {DType::kU8,         {"U8",          1, 1, kUnsigned, "|u1",  1, nullptr}},
    {DType::kI8,         {"I8",          1, 1, kSigned,   "|i1",  0, nullptr}},
    {DType::kF8E5M2,     {"F8_E5M2",     1, 1, kFloat,    "|V1", 12, f8_e5m2_to_f32}},
    {DType::kF8E4M3,     {"F8_E4M3",     1, 1, kFloat,    "|V1", 10, f8_e4m3_to_f32}},
    {DType::kF8E8M0,     {"F8_E8M0",     1, 1, kFloat,    "|V1", 14, f8_e8m0_to_f32}},
    {DType::kF8E4M3Fnuz, {"F8_E4M3FNUZ", 1, 1, kFloat,    "|V1", 11, f8_e4m3fnuz_to_f32}},
    {DType::kF8E5M2Fnuz, {"F8_E5M2FNUZ", 1, 1, kFloat,    "|V1", 13, f8_e5m2fnuz_to_f32}},
    {DType::kI16,        {"I16",         1, 2, kSigned,   "<i2",  0, nullptr}},
    {DType::kU16,        {"U16",         1, 2, kUnsigned, "<u2",  1, nullptr}},
    {DType::kF16,        {"F16",         1, 2, kFloat,    "<f2",  2, f16_to_f32}},
    {DType::kBF16,       {"BF16",        1, 2, kFloat,    "<V2",  4, bf16_to_f32}},
    {DType::kI32,        {"I32",         1, 4, kSigned,   "<i4",  0, nullptr}},
    {DType::kU32,        {"U32",         1, 4, kUnsigned, "<u4",  1, nullptr}},
    {DType::kF32,        {"F32",         1, 4, kFloat,    "<f4",  2, f32_to_f32}},
    {DType::kC64,        {"C64",         1, 8, kComplex,  "<c8",  5, nullptr}},
    {DType::kF64,        {"F64",         1, 8, kFloat,    "<f8",  2, f64_to_f32}},
    {DType::kI64,        {"I64",         1, 8, kSigned,   "<i8",  0, nullptr}},
    {DType::kU64,        {"U64",         1, 8, kUnsigned, "<u8",  1, nullptr}},
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

}  // namespace stfs
