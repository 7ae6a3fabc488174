// Compares the headers of NumPy files byte by byte.
#include "core/recipe/npy.h"

#include "core/format/types.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;
using Dims = std::vector<std::uint64_t>;

// Returns 10 bytes, then the dict, padded with spaces and ended by a newline.
std::string expected(const std::string& dict, std::size_t total) {
  const std::size_t rest = total - 10;
  std::string out = "\x93NUMPY\x01\x00"s;
  out += static_cast<char>(rest & 0xFF);
  out += static_cast<char>(rest >> 8);
  out += dict + std::string(rest - 1 - dict.size(), ' ') + "\n";
  return out;
}

TEST(NpyHeader, WritesEmptyTupleForScalar) {
  EXPECT_EQ(npy_header("<f4", Dims{}),
            "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (), }"
            "                                                              \n"s);
}

TEST(NpyHeader, WritesShapeAsPythonTuple) {
  EXPECT_EQ(npy_header("<f4", Dims{3}),
            expected("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 128));
  EXPECT_EQ(npy_header("|b1", Dims{3, 0}),
            expected("{'descr': '|b1', 'fortran_order': False, 'shape': (3, 0), }", 128));
  EXPECT_EQ(npy_header("<V2", Dims{1, 2, 3, 18446744073709551615U}),
            expected("{'descr': '<V2', 'fortran_order': False, "
                     "'shape': (1, 2, 3, 18446744073709551615), }",
                     128));
}

TEST(NpyHeader, PadsTo64BytesAndEndsWithNewline) {
  Dims shape;
  for (std::size_t rank = 0; rank <= kNpyMaxRank; ++rank) {
    for (const std::uint64_t dim : {1ULL, 10ULL, 100ULL, 18446744073709551615ULL}) {
      Dims dims = shape;
      if (!dims.empty()) dims.back() = dim;

      const std::string header = npy_header("<f4", dims);

      EXPECT_EQ(header.size() % 64, 0U);
      EXPECT_EQ(header.back(), '\n');
      EXPECT_EQ(header.substr(0, 8), "\x93NUMPY\x01\x00"s);
      const auto low = static_cast<unsigned char>(header[8]);
      const auto high = static_cast<unsigned char>(header[9]);
      EXPECT_EQ(low + 256U * high + 10, header.size());
      const std::size_t dict_end = header.find('}');
      ASSERT_NE(dict_end, std::string::npos);
      EXPECT_EQ(header.find_first_not_of(' ', dict_end + 1), header.size() - 1);
      EXPECT_LE(header.size() - dict_end, 66U) << "more padding than needed";
    }
    shape.push_back(18446744073709551615U);
  }
}

TEST(NpyCode, HasExpectedCodeForEachDType) {
  const std::map<DType, std::string> codes{
      {DType::kBool, "|b1"},      {DType::kU8, "|u1"},     {DType::kI8, "|i1"},
      {DType::kU16, "<u2"},       {DType::kI16, "<i2"},    {DType::kU32, "<u4"},
      {DType::kI32, "<i4"},       {DType::kU64, "<u8"},    {DType::kI64, "<i8"},
      {DType::kF16, "<f2"},       {DType::kF32, "<f4"},    {DType::kF64, "<f8"},
      {DType::kC64, "<c8"},       {DType::kBF16, "<V2"},   {DType::kF8E5M2, "|V1"},
      {DType::kF8E4M3, "|V1"},    {DType::kF8E8M0, "|V1"}, {DType::kF8E4M3Fnuz, "|V1"},
      {DType::kF8E5M2Fnuz, "|V1"}};
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto code = codes.find(dtype);
    EXPECT_EQ(type_info(dtype).npy, code == codes.end() ? "" : code->second) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace stfs::test
