// Compares slices converted to binary32 with the whole tensor's values.
#include "core/recipe/elements.h"

#include "tests/support/checkpoint_writer.h"
#include "tests/unit/allocated.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using Dims = std::vector<std::uint64_t>;

// Produces the bytes of a tensor; counts the bytes requested.
class CountedBytes : public Producer {
 public:
  CountedBytes(std::string bytes, std::uint64_t& read) : bytes_(std::move(bytes)), read_(read) {}

  std::uint64_t size() const override { return bytes_.size(); }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}
  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    read_ += out.size();
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return 0;
  }

 private:
  std::string bytes_;
  std::uint64_t& read_;
};

class SliceF32 : public ::testing::TestWithParam<DType> {
 protected:
  // Returns the slice as bytes of floats.
  std::unique_ptr<const Producer> part(const std::string& expression, const Dims& shape) {
    std::vector<Range> ranges;
    EXPECT_EQ(parse_ranges(expression, shape, ranges), 0) << expression;
    Content raw;
    raw.production(std::make_unique<CountedBytes>(bytes_, read_));
    return as_f32(std::move(raw), type_info(GetParam()), elements_of(ranges, shape));
  }

  void fill(const Dims& shape) {
    std::uint64_t elements = 1;
    for (const std::uint64_t dimension : shape) elements *= dimension;
    bytes_ = RandomBytes(elements).bytes(*type_info(GetParam()).bytes_of(elements));
    whole_.resize(elements);
    type_info(GetParam())
        .to_f32(std::as_bytes(std::span(bytes_)).data(), whole_.size(), whole_.data());
  }

  // Returns the values of the ranges, computed index by index.
  std::string model(const std::string& expression, const Dims& shape) const {
    std::vector<Range> ranges;
    EXPECT_EQ(parse_ranges(expression, shape, ranges), 0) << expression;
    std::vector<float> taken;
    take(ranges, shape, 0, 0, taken);
    return {reinterpret_cast<const char*>(taken.data()), taken.size() * sizeof(float)};
  }

  std::string bytes_;
  std::vector<float> whole_;
  std::uint64_t read_ = 0;

 private:
  void take(const std::vector<Range>& ranges, const Dims& shape, std::size_t dimension,
            std::uint64_t at, std::vector<float>& taken) const {
    if (dimension == shape.size()) {
      taken.push_back(whole_[at]);
      return;
    }
    const Range& range = ranges[dimension];
    for (std::uint64_t i = 0; i < range.count; ++i) {
      const std::uint64_t index = range.start + i * range.step;
      take(ranges, shape, dimension + 1, at * shape[dimension] + index, taken);
    }
  }
};

std::string all(const Producer& producer) {
  std::string text(producer.size(), '\0');
  EXPECT_EQ(producer.produce(0, std::as_writable_bytes(std::span(text))), 0);
  return text;
}

TEST_P(SliceF32, MatchesValuesOfWholeTensor) {
  const Dims shape{7, 6, 20};
  fill(shape);

  for (const std::string expression :
       {"...",         "0",       "-1",       "3,2,1",          "0,0,0",      "-1,-1,-1",
        ":,:,1",       ":,:,1:2", ":,:,1:4",  ":,:,3:",         "...,::2",    "...,1::3",
        "::2,::5,::7", ":,1",     ":,1,3:19", "1:6:4,...,::19", "2:3,:,:5",   "1::2,1::2,1::2",
        "6,5,17:",     "::3",     ":,::4,:",  "...,7:8",        "0:1,0:1,0:1"}) {
    const auto producer = part(expression, shape);
    const std::string expected = model(expression, shape);
    ASSERT_EQ(producer->size(), expected.size()) << expression;
    EXPECT_TRUE(all(*producer) == expected) << expression;
  }
}

TEST_P(SliceF32, ReadsAnyByteRange) {
  const Dims shape{40, 3, 52};
  fill(shape);
  RandomBytes random(3);

  for (const std::string expression : {":,1,1:50:3", "::7,:,5", ":,:,3:7", "1:,...", ":,0,::51"}) {
    const auto producer = part(expression, shape);
    const std::string expected = model(expression, shape);
    for (int round = 0; round < 200; ++round) {
      const std::uint64_t offset = random.next() % expected.size();
      std::string some(random.next() % (expected.size() - offset) + 1, '\0');
      ASSERT_EQ(producer->produce(offset, std::as_writable_bytes(std::span(some))), 0);
      ASSERT_TRUE(some == expected.substr(offset, some.size()))
          << expression << ": " << some.size() << " at " << offset;
    }
  }
}

TEST_P(SliceF32, ReadsFewUnneededBytes) {
  const Dims shape{16, 1 << 18};
  fill(shape);

  all(*part(":,100001", shape));
  EXPECT_LE(read_, 16U * 8) << "more than a block for each row";
  read_ = 0;
  all(*part("5,1001:3001", shape));
  EXPECT_LE(read_, 2002U * 8);
}

TEST_P(SliceF32, MillionsOfRunsUseBoundedMemory) {
  const Dims shape{std::uint64_t{1} << 23};
  fill(shape);
  const auto producer = part("1::3", shape);
#ifndef STFS_SANITIZED  // sanitizers have their own allocator
  const std::uint64_t before = allocated_bytes();
#endif
  std::string piece(1 << 20, '\0');
  for (std::uint64_t offset = 0; offset + piece.size() <= producer->size();
       offset += piece.size()) {
    ASSERT_EQ(producer->produce(offset, std::as_writable_bytes(std::span(piece))), 0);
    const std::uint64_t first = offset / sizeof(float);
    for (std::uint64_t i = 0; i < piece.size() / sizeof(float); i += 997) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &piece[i * sizeof bits], sizeof bits);
      EXPECT_EQ(bits, std::bit_cast<std::uint32_t>(whole_[1 + 3 * (first + i)]));
    }
  }
#ifndef STFS_SANITIZED
  EXPECT_LT(allocated_bytes() - before, std::uint64_t{64} << 20)
      << "more than a window for each piece";
#endif
}

// An element's value is the first byte of its block times 256 plus its position in the block.
void blocks_to_f32(const std::byte* blocks, std::size_t elements, float* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    out[i] = static_cast<float>(std::to_integer<unsigned>(blocks[i / 256 * 144]) * 256 + i % 256);
  }
}

TEST(SliceF32LargeBlocks, StepsWithinBlockUseBoundedMemory) {
  static constexpr TypeInfo kType{.name = "Q",
                                  .block_elements = 256,
                                  .block_bytes = 144,
                                  .kind = TypeKind::kQuantized,
                                  .to_f32 = blocks_to_f32};
  const Dims shape{std::uint64_t{1} << 23};
  std::string bytes = RandomBytes(9).bytes(*kType.bytes_of(shape[0]));
  const std::string known = bytes;
  std::vector<Range> ranges;
  ASSERT_EQ(parse_ranges("3::255", shape, ranges), 0);
  std::uint64_t read = 0;
  Content raw;
  raw.production(std::make_unique<CountedBytes>(std::move(bytes), read));
  const auto producer = as_f32(std::move(raw), kType, elements_of(ranges, shape));
  std::vector<float> values(producer->size() / sizeof(float));
#ifndef STFS_SANITIZED
  const std::uint64_t before = allocated_bytes();
#endif

  ASSERT_EQ(producer->produce(0, std::as_writable_bytes(std::span(values))), 0);

#ifndef STFS_SANITIZED
  EXPECT_LT(allocated_bytes() - before, std::uint64_t{1} << 20);
#endif
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    const std::uint64_t element = 3 + i * 255;
    const auto first = static_cast<unsigned char>(known[element / 256 * 144]);
    ASSERT_EQ(values[i], static_cast<float>(first * 256 + element % 256)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SliceF32,
                         ::testing::Values(DType::kF4, DType::kF6E2M3, DType::kF6E3M2,
                                           DType::kF8E4M3, DType::kBF16, DType::kF32, DType::kF64),
                         [](const auto& parameter) {
                           return std::string(dtype_name(parameter.param));
                         });

}  // namespace
}  // namespace stfs::test
