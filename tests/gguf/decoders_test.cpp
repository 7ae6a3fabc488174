// The decoders of GGUF's blocks. tests/gguf/ggml_decoders_test.cpp compares them with ggml's; the
// digests below are of values that agreed, so that a change is found without ggml too.
#include "core/base/sha256.h"
#include "core/format/block_decoders.h"
#include "core/format/codebooks.h"
#include "core/format/types.h"
#include "tests/gguf/blocks.h"

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

// Of 1,000 random blocks.
const std::map<std::string_view, std::string_view> kDigests{
    {"Q4_0", "ad9c0dcf72108574"},    {"Q4_1", "076371d317c942e9"},
    {"Q5_0", "9208424191401c13"},    {"Q5_1", "dc1d24236072c1f2"},
    {"Q8_0", "0de06cd843be87f7"},    {"Q8_1", "ee4b7be78d675b8a"},
    {"Q2_K", "71b9c028041b3254"},    {"Q3_K", "d0aec3a9dcee79ea"},
    {"Q4_K", "d37a47694109d1f6"},    {"Q5_K", "6d1938d58be3f587"},
    {"Q6_K", "11f7a8778b3a0afa"},    {"Q8_K", "ff1a171d237e6c32"},
    {"IQ2_XXS", "19ab70b1cd5d1d99"}, {"IQ2_XS", "9149f0660208b8ab"},
    {"IQ3_XXS", "0aeb1d85058fc570"}, {"IQ1_S", "ef66f06cb0fad978"},
    {"IQ4_NL", "1b611d11ec6560a7"},  {"IQ3_S", "1a6bcc3ff4730b99"},
    {"IQ2_S", "934b48ffbc4655a7"},   {"IQ4_XS", "2728ad2c5f33fcc0"},
    {"IQ1_M", "34beca6bf295d2c3"},   {"TQ1_0", "6e17d9277b4b1484"},
    {"TQ2_0", "c0adf96533d4019e"},   {"MXFP4", "57ebcec6e8199b36"},
    {"NVFP4", "d3b3a68757dde796"},   {"Q1_0", "1e6ef8b3187539b9"},
    {"Q2_0", "7d87b015d2a42819"},
};

std::vector<float> decoded(BlockDecoder* decode, DType dtype, const std::string& blocks) {
  const TypeInfo& info = type_info(dtype);
  std::vector<float> values(info.elements_in(blocks.size()));
  decode(std::as_bytes(std::span(blocks)).data(), values.size(), values.data());
  return values;
}

std::vector<Vectors> vectors_here() {
  std::vector<Vectors> all;
  for (int i = 0; i <= static_cast<int>(processor_vectors()); ++i) {
    all.push_back(static_cast<Vectors>(i));
  }
  return all;
}

TEST(BlockDecoders, GiveEachTypeTheValuesOfGgml) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 1000);
    const auto values = comparable(decoded(type_info(dtype).to_f32, dtype, blocks));
    const auto expected = kDigests.find(dtype_name(dtype));
    ASSERT_NE(expected, kDigests.end()) << dtype_name(dtype);
    EXPECT_EQ(digest(std::as_bytes(std::span(values))), expected->second) << dtype_name(dtype);
  }
}

TEST(BlockDecoders, GiveTheSameBitsWithAllVectors) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 1000);
    const auto baseline = comparable(
        decoded(block_decoder(type_info(dtype).gguf, Vectors::kBaseline), dtype, blocks));
    for (const Vectors vectors : vectors_here()) {
      BlockDecoder* const decode = block_decoder(type_info(dtype).gguf, vectors);
      ASSERT_EQ(comparable(decoded(decode, dtype, blocks)), baseline)
          << dtype_name(dtype) << " " << static_cast<int>(vectors);
    }
  }
}

// Heap buffers of the exact size: AddressSanitizer finds a byte read or written outside.
TEST(BlockDecoders, ReadAndWriteNothingOutsideOfTheBlocks) {
  for (const DType dtype : block_types()) {
    const TypeInfo& info = type_info(dtype);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
      const std::string random = random_blocks(dtype, count);
      for (const Vectors vectors : vectors_here()) {
        const std::vector<char> exact(random.begin(), random.end());
        std::vector<float> values(count * info.block_elements + 1, 42);
        block_decoder(info.gguf, vectors)(std::as_bytes(std::span(exact)).data(),
                                          count * info.block_elements, values.data());
        EXPECT_EQ(values.back(), 42) << info.name;
      }
    }
  }
}

TEST(BlockDecoders, NeedNoAlignment) {
  for (const DType dtype : block_types()) {
    const std::string blocks = random_blocks(dtype, 3);
    const std::string moved = "x" + blocks;
    std::vector<float> values(3U * type_info(dtype).block_elements);
    type_info(dtype).to_f32(std::as_bytes(std::span(moved)).data() + 1, values.size(),
                            values.data());
    EXPECT_EQ(comparable(values), comparable(decoded(type_info(dtype).to_f32, dtype, blocks)));
  }
}

TEST(BlockDecoders, OfTypesThatAreNoBlocksAreNone) {
  EXPECT_EQ(block_decoder(0, Vectors::kBaseline), nullptr);
  EXPECT_EQ(block_decoder(4, Vectors::kBaseline), nullptr);
  EXPECT_EQ(block_decoder(255, Vectors::kBaseline), nullptr);
}

// The digests of the tables, whose rows were read out of ggml's library.
TEST(Codebooks, AreThoseOfGgml) {
  const auto of = [](const auto& book) { return digest(std::as_bytes(std::span(book))); };
  EXPECT_EQ(of(kIq2Xxs), "05826b5d3e472a3a");
  EXPECT_EQ(of(kIq2Xs), "06e47aaca60b4dc1");
  EXPECT_EQ(of(kIq2S), "e1aa1473412b0552");
  EXPECT_EQ(of(kIq3Xxs), "46e35f5a997efdee");
  EXPECT_EQ(of(kIq3S), "bd1af4945a1717c6");
  EXPECT_EQ(of(kIq1), "07540ffc1aeaf6ad");
}

}  // namespace
}  // namespace stfs::test
