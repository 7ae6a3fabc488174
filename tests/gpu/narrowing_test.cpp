// Conversion of every type to each target of --as, compared with a reference implementation.
#include "tools/gpu/device/narrowing.h"

#include "core/format/narrow.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/late_source.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

constexpr DType kFloating[] = {DType::kF4,         DType::kF6E2M3,     DType::kF6E3M2,
                               DType::kF8E5M2,     DType::kF8E4M3,     DType::kF8E8M0,
                               DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz, DType::kF16,
                               DType::kBF16,       DType::kF32,        DType::kF64};
constexpr DType kTargets[] = {DType::kF32, DType::kF16, DType::kBF16};

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> bytes_of_doubles(const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Converts the elements one at a time, and counts out-of-range values and NaNs.
ConversionCounts reference(DType from, DType to, std::uint64_t count, std::span<const std::byte> in,
                           std::vector<std::byte>& out) {
  std::vector<float> floats(count);
  type_info(from).to_f32(in.data(), count, floats.data());
  ConversionCounts counts;
  out.resize(count * type_info(to).bits() / 8);
  for (std::size_t i = 0; i < count; ++i) {
    auto bits = std::bit_cast<std::uint32_t>(floats[i]);
    bool is_finite = std::isfinite(floats[i]);
    if (from == DType::kF64) {
      double wide = 0;
      std::memcpy(&wide, in.data() + i * sizeof wide, sizeof wide);
      is_finite = std::isfinite(wide);
      if (to != DType::kF32) bits = to_odd_f32(std::bit_cast<std::uint64_t>(wide));
    }
    bool is_infinite = std::isinf(floats[i]);
    if (to == DType::kF32) {
      std::memcpy(out.data() + i * 4, &bits, 4);
    } else {
      const std::uint16_t narrow = to == DType::kF16 ? to_f16(bits) : to_bf16(bits);
      is_infinite = (narrow & 0x7fff) == (to == DType::kF16 ? 0x7c00 : 0x7f80);
      std::memcpy(out.data() + i * 2, &narrow, 2);
    }
    counts.nan += std::isnan(floats[i]) ? 1 : 0;
    counts.out_of_range += is_finite && is_infinite ? 1 : 0;
  }
  return counts;
}

TEST(GpuNarrowing, ConvertsRealFloatingTypesToThreeTargets) {
  int pairs = 0;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto from = static_cast<DType>(i);
    const bool is_float = type_info(from).kind == TypeKind::kFloat;
    for (const DType to : kTargets) pairs += is_float && converts(from, to) ? 1 : 0;
    EXPECT_FALSE(converts(from, DType::kF64));
    EXPECT_FALSE(converts(from, DType::kU8));
  }
  EXPECT_EQ(pairs, 36);
  EXPECT_FALSE(converts(DType::kC64, DType::kF32));
  EXPECT_FALSE(converts(DType::kI32, DType::kF32));
  EXPECT_FALSE(converts(DType::kBool, DType::kF32));
}

TEST(GpuNarrowing, ConvertsEveryTypeToEveryTarget) {
  // Enough for every bit pattern of the narrow types, for several blocks, and not a multiple of
  // one.
  constexpr std::uint64_t kCount = 70'008;
  for (const DType from : kFloating) {
    const std::vector<std::byte> in =
        bytes_of(RandomBytes(3).bytes(kCount * type_info(from).bits() / 8));
    for (const DType to : kTargets) {
      std::vector<std::byte> expected;
      const ConversionCounts counts = reference(from, to, kCount, in, expected);
      std::vector<std::byte> found(expected.size());

      const ConversionCounts converted = convert_elements(from, to, kCount, in, found);

      EXPECT_EQ(found, expected) << dtype_name(from) << " as " << dtype_name(to);
      EXPECT_EQ(converted.nan, counts.nan) << dtype_name(from) << " as " << dtype_name(to);
      EXPECT_EQ(converted.out_of_range, counts.out_of_range)
          << dtype_name(from) << " as " << dtype_name(to);
    }
  }
}

TEST(GpuNarrowing, NeedsOnlyBytesOfReadElements) {
  const TempDir dir;
  write_file(dir / "f", std::string(100, 'x'));
  LateSource source((dir / "f").string());
  source.take_bytes_away();
  Content raw;
  raw.extent(source, 0, 100);
  Content content;
  content.production(as_type(std::move(raw), DType::kF4, DType::kF16, 200));

  const std::vector<Extent> missing = content.missing(11, 2);

  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].offset, 2U) << "the first byte of elements 5 and 6";
  EXPECT_EQ(missing[0].length, 2U);
}

TEST(GpuNarrowing, CountsOnlyValuesThatBecomeInfinite) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::byte> in =
      bytes_of_doubles({65519.0, 65520.0, -1e6, 1e39, -1e300, inf, -inf, nan, -nan, 0.0, 3.4e38});
  std::vector<std::byte> out(11 * 4);

  const ConversionCounts f16 = convert_elements(DType::kF64, DType::kF16, 11, in, out);
  const ConversionCounts bf16 = convert_elements(DType::kF64, DType::kBF16, 11, in, out);
  const ConversionCounts f32 = convert_elements(DType::kF64, DType::kF32, 11, in, out);

  EXPECT_EQ(f16.out_of_range, 5u);
  EXPECT_EQ(bf16.out_of_range, 3u) << "3.4e38 rounds beyond the largest bfloat16";
  EXPECT_EQ(f32.out_of_range, 2u);
  for (const ConversionCounts& counts : {f16, bf16, f32}) EXPECT_EQ(counts.nan, 2u);
}

class Converted : public ::testing::Test {
 protected:
  // Writes `bytes` to a file. Returns the content of that file.
  Content raw(const std::string& bytes) {
    write_file(dir_ / "raw", bytes);
    file_ = std::make_unique<LocalFile>((dir_ / "raw").string());
    Content content;
    content.extent(*file_, 0, bytes.size());
    return content;
  }

  LocalFile& file() { return *file_; }

 private:
  TempDir dir_;
  std::unique_ptr<LocalFile> file_;
};

TEST_F(Converted, PartEqualsSameRangeInWhole) {
  constexpr std::uint64_t kCount = 20'480;
  for (const DType from : {DType::kF4, DType::kF6E3M2, DType::kF8E4M3, DType::kF32, DType::kF64,
                           DType::kQ8_0, DType::kQ1_0}) {
    const std::string bytes = RandomBytes(5).bytes(*type_info(from).bytes_of(kCount));
    for (const DType to : kTargets) {
      std::vector<std::byte> whole;
      reference(from, to, kCount, bytes_of(bytes), whole);
      const auto producer = as_type(raw(bytes), from, to, kCount);
      ASSERT_EQ(producer->size(), whole.size());
      RandomBytes random(9);
      for (int i = 0; i < 200; ++i) {
        const std::size_t begin = random.next() % whole.size();
        const std::size_t length =
            1 + random.next() % std::min<std::size_t>(whole.size() - begin, 40'000);
        std::vector<std::byte> part(length);
        ASSERT_EQ(producer->produce(begin, part), 0);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, length), 0)
            << dtype_name(from) << " as " << dtype_name(to) << " at " << begin;
      }
    }
  }
}

TEST_F(Converted, CountsEachElementOnceAcrossThreads) {
  constexpr std::uint64_t kCount = 100'000;
  const std::string bytes = RandomBytes(8).bytes(kCount * sizeof(float));
  std::vector<std::byte> whole;
  const ConversionCounts counts =
      reference(DType::kF32, DType::kF16, kCount, bytes_of(bytes), whole);
  ConversionTally tally;
  const auto producer = as_type(raw(bytes), DType::kF32, DType::kF16, kCount, &tally);

  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::byte> tile(512);
        for (std::size_t at = t * 512; at < whole.size(); at += 4 * 512) {
          const std::size_t length = std::min<std::size_t>(512, whole.size() - at);
          producer->produce(at, std::span(tile).first(length));
        }
      });
    }
  }

  EXPECT_GT(counts.nan, 0u);
  EXPECT_GT(counts.out_of_range, 0u);
  EXPECT_EQ(tally.total().nan, counts.nan);
  EXPECT_EQ(tally.total().out_of_range, counts.out_of_range);
}

// For conversions to binary32 tiles may begin and end inside blocks.
TEST_F(Converted, CountsEachElementOnceForAnyTileSize) {
  constexpr std::uint64_t kCount = 10 * 256;
  for (const DType from : {DType::kQ6_K, DType::kF4, DType::kF8E5M2}) {
    const std::string bytes = RandomBytes(8).bytes(*type_info(from).bytes_of(kCount));
    std::vector<std::byte> whole;
    const ConversionCounts counts = reference(from, DType::kF32, kCount, bytes_of(bytes), whole);
    for (const std::size_t step : {4U, 12U, 512U, 1028U}) {
      ConversionTally tally;
      const auto producer = as_type(raw(bytes), from, DType::kF32, kCount, &tally);
      std::vector<std::byte> found(whole.size());
      for (std::size_t at = 0; at < whole.size(); at += step)
        producer->produce(at, std::span(found).subspan(at, std::min(step, whole.size() - at)));

      EXPECT_EQ(found, whole);
      EXPECT_EQ(tally.total().nan, counts.nan) << dtype_name(from) << " by " << step;
    }
  }
}

TEST_F(Converted, ChangedSourceIsESTALE) {
  const auto producer = as_type(raw(std::string(4096, 'x')), DType::kF32, DType::kF16, 1024);
  std::vector<std::byte> out(2048);
  ASSERT_EQ(producer->produce(0, out), 0);
  std::filesystem::resize_file(file().path(), 100);

  EXPECT_EQ(producer->produce(0, out), ESTALE);
  EXPECT_EQ(producer->verify(), ESTALE);
}

}  // namespace
}  // namespace stfs::gpu::test
