// Compares the decoder of every block type with ggml's own, bit for bit.
#include "core/base/vectors.h"
#include "tests/gguf/blocks.h"
#include "tests/gguf/ggml.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class GgmlDecoders : public GgmlTest {
 protected:
  // Returns ggml's values. Returns none for Q8_1, because ggml has no decoder for it.
  std::vector<float> expected(DType dtype, const std::string& blocks) const {
    const TypeInfo& info = type_info(dtype);
    auto* to_float = ggml_->get_type_traits(info.gguf)->to_float;
    if (dtype == DType::kQ8_K) to_float = ggml_->dequantize_row_q8_K;
    if (to_float == nullptr) return {};
    std::vector<float> values(info.elements_in(blocks.size()));
    to_float(blocks.data(), values.data(), static_cast<std::int64_t>(values.size()));
    return values;
  }

  void compare(DType dtype, const std::string& blocks) const {
    const std::vector<float> theirs = expected(dtype, blocks);
    std::vector<float> ours(theirs.size());
    const std::size_t step = type_info(dtype).block_elements;
    with_each_target([&](const char* vectors) {
      type_info(dtype).to_f32(std::as_bytes(std::span(blocks)).data(), ours.size(), ours.data());
      for (std::size_t at = 0; at < ours.size(); at += step) {
        if (std::memcmp(&ours[at], &theirs[at], step * sizeof(float)) == 0) continue;
        const std::span a = std::span(ours).subspan(at, step);
        const std::span b = std::span(theirs).subspan(at, step);
        ASSERT_EQ(comparable({a.begin(), a.end()}), comparable({b.begin(), b.end()}))
            << dtype_name(dtype) << " block " << at / step << " with " << vectors;
      }
    });
  }
};

TEST_F(GgmlDecoders, HaveSameBlockSizes) {
  for (const DType dtype : block_types()) {
    const Ggml::Traits* const traits = ggml_->get_type_traits(type_info(dtype).gguf);
    EXPECT_EQ(traits->block_elements, type_info(dtype).block_elements) << dtype_name(dtype);
    EXPECT_EQ(traits->block_bytes, type_info(dtype).block_bytes) << dtype_name(dtype);
  }
}

TEST_F(GgmlDecoders, DecodeRandomBlocksToSameBits) {
  for (const DType dtype : block_types()) compare(dtype, random_blocks(dtype, 100'000));
}

TEST_F(GgmlDecoders, DecodeQuantisedFloatsToSameBits) {
  constexpr std::int64_t kRows = 2;
  constexpr std::int64_t kRow = 1024;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> floats(kRows * kRow);
  for (float& value : floats) value = normal(random);
  const std::vector<float> weights(kRow, 1);
  for (const DType dtype : block_types()) {
    if (dtype == DType::kQ8_1 || dtype == DType::kQ8_K)
      continue;  // ggml_quantize_chunk does not support them
    const TypeInfo& info = type_info(dtype);
    std::string blocks(*info.bytes_of(floats.size()), '\0');
    ASSERT_EQ(ggml_->quantize_chunk(info.gguf, floats.data(), blocks.data(), 0, kRows, kRow,
                                    weights.data()),
              blocks.size());
    compare(dtype, blocks);
  }
}

// ggml has no decoder for Q8_1. Its blocks have a scale, a sum and 32 integers.
TEST(BlockDecoders, Q8_1MultipliesIntegersByScale) {
  const std::string random = random_blocks(DType::kQ8_1, 1000);
  std::string q8_0;
  for (std::size_t i = 0; i < random.size(); i += 36) {
    q8_0 += random.substr(i, 2) + random.substr(i + 4, 32);
  }
  std::vector<float> values(32'000);
  std::vector<float> expected(32'000);
  type_info(DType::kQ8_1)
      .to_f32(std::as_bytes(std::span(random)).data(), values.size(), values.data());
  type_info(DType::kQ8_0)
      .to_f32(std::as_bytes(std::span(q8_0)).data(), values.size(), expected.data());

  EXPECT_EQ(comparable(values), comparable(expected));
}

}  // namespace
}  // namespace stfs::test
