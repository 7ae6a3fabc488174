#include "core/format/types.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

struct Row {
  std::string_view name;
  unsigned bits;
};

// In the order of the enumeration.
constexpr std::array<Row, kDTypeCount> kRows{{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) { return row(dtype).name; }

unsigned dtype_bits(DType dtype) { return row(dtype).bits; }

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &Row::name);
  if (found == kRows.end()) return std::nullopt;
  return static_cast<DType>(found - kRows.begin());
}

}  // namespace stfs
