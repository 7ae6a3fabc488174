// The decoders of GGUF's blocks. tests/gguf/ggml_decoders_test.cpp compares them with ggml's. The
// digests below come from values that were equal, so that tests find a change even without ggml.
#include "core/base/sha256.h"
#include "core/base/vectors.h"
#include "core/format/codebooks.h"
#include "core/format/types.h"
#include "tests/gguf/blocks.h"
#include "tests/support/guarded.h"

#include <gtest/gtest.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

std::string digest(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.add(bytes);
  return sha.hex().substr(0, 16);
}

// Digests of the values of 1,000 random blocks.
const std::map<std::string_view, std::string_view> kDigests{
    {"Q4_0", "ec144f17ef237812"},    {"Q4_1", "51033d0a0ed97170"},
    {"Q5_0", "0d2adcf77064f73a"},    {"Q5_1", "7935d724e8f76405"},
    {"Q8_0", "ec07ccf3a9ea217b"},    {"Q8_1", "0200b551001e2302"},
    {"Q2_K", "9a12d8e963677f8c"},    {"Q3_K", "3df05c220906ec15"},
    {"Q4_K", "eb2f8011478742a4"},    {"Q5_K", "05b4f8d50a0de6d5"},
    {"Q6_K", "7cc52748fdc3ca88"},    {"Q8_K", "5f214057951ea922"},
    {"IQ2_XXS", "41af63d6b8ebbd22"}, {"IQ2_XS", "f72b35abce020a1b"},
    {"IQ3_XXS", "7dc90bbb329f59a6"}, {"IQ1_S", "4b2d10ff8489e9b4"},
    {"IQ4_NL", "0533e8df9903c530"},  {"IQ3_S", "ba2dfc1434ae0cca"},
    {"IQ2_S", "1c57028cae57512b"},   {"IQ4_XS", "68158fa7f286a7f6"},
    {"IQ1_M", "831aeef1e0933fff"},   {"TQ1_0", "f3b881f0e00cdeb5"},
    {"TQ2_0", "4b7521f59957fe58"},   {"MXFP4", "28fb9a2888eedecf"},
    {"NVFP4", "606d56ff33b2bd90"},   {"Q1_0", "1c880454152e6f5d"},
    {"Q2_0", "75565992717dc88f"},
};

std::vector<float> decoded(DType dtype, const std::string& blocks) {
  const TypeInfo& info = type_info(dtype);
  std::vector<float> values(info.elements_in(blocks.size()));
  info.to_f32(std::as_bytes(std::span(blocks)).data(), values.size(), values.data());
  return values;
}

TEST(BlockDecoders, ValuesMatchDigestsFromGgml) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 1000);
    const auto values = comparable(decoded(dtype, blocks));
    const auto expected = kDigests.find(dtype_name(dtype));
    ASSERT_NE(expected, kDigests.end()) << dtype_name(dtype);
    EXPECT_EQ(digest(std::as_bytes(std::span(values))), expected->second) << dtype_name(dtype);
  }
}

TEST(BlockDecoders, GiveSameBitsOnEachVectorTarget) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 1000);
    const auto best = comparable(decoded(dtype, blocks));
    with_each_target([&](const char* vectors) {
      ASSERT_EQ(comparable(decoded(dtype, blocks)), best)
          << dtype_name(dtype) << " with " << vectors;
    });
  }
}

// The blocks and the values are adjacent to pages without access.
TEST(BlockDecoders, DoNotAccessBytesOutsideBlocks) {
  for (const DType dtype : block_types()) {
    const TypeInfo& info = type_info(dtype);
    for (const std::size_t count : {0U, 1U, 2U, 3U, 7U, 100U}) {
      const std::string random = random_blocks(dtype, count);
      const auto expected = comparable(decoded(dtype, random));
      for (const auto flush : {Guarded::Flush::kBegin, Guarded::Flush::kEnd}) {
        const Guarded blocks(std::as_bytes(std::span(random)), flush);
        const Guarded values(count * info.block_elements * sizeof(float), flush);
        with_each_target([&](const char* vectors) {
          auto* const out = reinterpret_cast<float*>(values.data());
          info.to_f32(blocks.data(), count * info.block_elements, out);
          EXPECT_EQ(comparable({out, out + count * info.block_elements}), expected)
              << info.name << " with " << vectors;
        });
      }
    }
  }
}

#if defined(__x86_64__)
TEST(BlockDecoders, GiveSameBitsInAnyRoundingMode) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 1000);
    const auto expected = comparable(decoded(dtype, blocks));
    std::vector<float> values(expected.size());
    bool is_kept = false;
    {
      const OtherArithmetic other;
      type_info(dtype).to_f32(std::as_bytes(std::span(blocks)).data(), values.size(),
                              values.data());
      is_kept = OtherArithmetic::is_set();
    }
    EXPECT_EQ(comparable(values), expected) << dtype_name(dtype);
    EXPECT_TRUE(is_kept) << "the decoder must not change how the calling thread rounds";
  }
}
#endif

TEST(BlockDecoders, NeedNoAlignment) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 3);
    const auto expected = comparable(decoded(dtype, blocks));
    for (std::size_t by = 1; by < 8; ++by) {
      const std::string moved = std::string(by, 'x') + blocks;
      std::vector<float> values(expected.size());
      with_each_target([&](const char* vectors) {
        type_info(dtype).to_f32(std::as_bytes(std::span(moved)).data() + by, values.size(),
                                values.data());
        EXPECT_EQ(comparable(values), expected) << dtype_name(dtype) << " with " << vectors;
      });
    }
  }
}

// The digests of the tables. Their rows were read from ggml's library.
TEST(Codebooks, MatchDigestsFromGgml) {
  const auto digest_of = [](const auto& book) { return digest(std::as_bytes(std::span(book))); };
  EXPECT_EQ(digest_of(kIq2Xxs), "05826b5d3e472a3a");
  EXPECT_EQ(digest_of(kIq2Xs), "06e47aaca60b4dc1");
  EXPECT_EQ(digest_of(kIq2S), "e1aa1473412b0552");
  EXPECT_EQ(digest_of(kIq3Xxs), "46e35f5a997efdee");
  EXPECT_EQ(digest_of(kIq3S), "bd1af4945a1717c6");
  EXPECT_EQ(digest_of(kIq1), "07540ffc1aeaf6ad");
}

}  // namespace
}  // namespace stfs::test
