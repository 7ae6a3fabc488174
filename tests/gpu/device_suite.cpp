#include "tests/gpu/device_suite.h"

#include "tests/gpu/device_pattern.h"
#include "tools/gpu/device/narrowing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>

namespace stfs::gpu::test {
namespace {

constexpr std::size_t kSuiteTile = 64 << 10;

std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Returns elements of `dtype` that fill whole bytes. For a type of at most 16 bits they are all its
// codes; for a wider type, values on both sides of each rounding boundary, and random bits.
std::vector<std::byte> elements_of(DType dtype, std::uint64_t& count) {
  const unsigned bits = type_info(dtype).bits();
  if (bits <= 16) {
    count = std::uint64_t{1} << bits;
    std::vector<std::byte> packed(count * bits / 8);
    for (std::uint64_t at = 0; at < count * bits; ++at) {
      if ((at / bits >> at % bits & 1) != 0) packed[at / 8] |= std::byte{1} << at % 8;
    }
    return packed;
  }
  std::vector<std::uint64_t> values;
  const unsigned fraction = bits == 32 ? 23 : 52;
  std::uint64_t state = 88172645463325252U;
  for (std::uint64_t exponent = 0; exponent < (std::uint64_t{1} << (bits - 1 - fraction));
       ++exponent) {
    const std::uint64_t base = exponent << fraction;
    for (unsigned bit = 0; bit < fraction; ++bit) {
      const std::uint64_t step = std::uint64_t{1} << bit;
      for (const std::uint64_t offset : {std::uint64_t{0}, step, step - 1, step + 1, 3 * step / 2})
        values.push_back(base + offset);
    }
    values.push_back(base | (next_random(state) & ((std::uint64_t{1} << fraction) - 1)));
    values.push_back(values.back() | std::uint64_t{1} << (bits - 1));
  }
  for (int i = 0; i < 20000; ++i)
    values.push_back(bits == 32 ? next_random(state) >> 32 : next_random(state));
  count = values.size();
  std::vector<std::byte> packed(count * bits / 8);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(packed.data() + i * bits / 8, &values[i], bits / 8);  // little-endian
  return packed;
}

}  // namespace

void DeviceSuite::SetUp() {
  if (!GetParam().may_be_absent) {
    info_ = GetParam().info();
    return;
  }
  try {
    info_ = GetParam().info();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

void DeviceSuite::TearDown() { EXPECT_EQ(GetParam().leaks(), ""); }

TEST_P(DeviceSuite, ReportsItsProperties) {
  const auto device = open_device(info_);

  const DeviceInfo info = device->info();

  EXPECT_EQ(info.id, info_.id);
  EXPECT_EQ(info.uuid, info_.uuid);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.total_bytes, 0U);
  EXPECT_GT(info.free_bytes, 0U);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_GE(device->default_workers(), 1U);
}

TEST_P(DeviceSuite, SentBytesArriveAtTheirOffset) {
  const auto device = open_device(info_);
  const auto segment = device->allocate(2 * kSegmentGranularity);
  const auto lane = device->lane(kSuiteTile);
  const std::vector<std::byte> bytes = pattern(1, segment->bytes());

  send_all(*lane, *segment, bytes, kSuiteTile);
  lane->drain();

  const UniqueFd fd = segment->publish();
  const auto mapped = map_segment(info_, fd.get(), bytes.size());
  EXPECT_EQ(GetParam().read(mapped->address(), bytes.size()), bytes);
}

TEST_P(DeviceSuite, AcceptsTilesWithAnySizeAndOffset) {
  const auto device = open_device(info_);
  const auto segment = device->allocate(kSegmentGranularity);
  const auto lane = device->lane(kSuiteTile);
  std::vector<std::byte> bytes = pattern(2, segment->bytes());

  send_all(*lane, *segment, bytes, kSuiteTile);
  std::uint64_t at = 3;
  for (std::size_t size = 1; size < kSuiteTile; size = size * 3 + 1) {
    const std::vector<std::byte> part = pattern(size, size);
    send_all(*lane, *segment, part, kSuiteTile, at);
    std::ranges::copy(part, bytes.begin() + static_cast<std::ptrdiff_t>(at));
    at += size + 5;
  }
  lane->drain();

  const UniqueFd fd = segment->publish();
  const auto mapped = map_segment(info_, fd.get(), bytes.size());
  EXPECT_EQ(GetParam().read(mapped->address(), bytes.size()), bytes);
}

TEST_P(DeviceSuite, FillsOneSegmentThroughManyLanes) {
  const auto device = open_device(info_);
  const auto segment = device->allocate(2 * kSegmentGranularity);
  const std::vector<std::byte> bytes = pattern(3, segment->bytes());
  constexpr std::size_t kWorkers = 4;
  const std::size_t share = bytes.size() / kWorkers;

  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < kWorkers; ++i) {
      workers.emplace_back([&, i] {
        const auto lane = device->lane(kSuiteTile);
        send_all(*lane, *segment, std::span(bytes).subspan(i * share, share), kSuiteTile,
                 i * share);
        lane->drain();
      });
    }
  }

  const UniqueFd fd = segment->publish();
  const auto mapped = map_segment(info_, fd.get(), bytes.size());
  EXPECT_EQ(GetParam().read(mapped->address(), bytes.size()), bytes);
}

TEST_P(DeviceSuite, ReadBackSeesEarlierTilesWithTwoReadsInFlight) {
  const auto device = open_device(info_);
  const auto segment = device->allocate(kSegmentGranularity);
  const auto lane = device->lane(kSuiteTile);
  const std::vector<std::byte> bytes = pattern(4, 10 * kSuiteTile);
  send_all(*lane, *segment, bytes, kSuiteTile);

  lane->read_ahead(*segment, 0, kSuiteTile);
  for (std::size_t tile = 0; tile < 10; ++tile) {
    if (tile < 9) lane->read_ahead(*segment, (tile + 1) * kSuiteTile, kSuiteTile);
    const auto back = lane->read_back();
    EXPECT_TRUE(std::ranges::equal(back, std::span(bytes).subspan(tile * kSuiteTile, kSuiteTile)));
  }
}

TEST_P(DeviceSuite, DroppedLaneFinishesItsOperations) {
  const auto device = open_device(info_);
  const auto segment = device->allocate(kSegmentGranularity);
  const std::vector<std::byte> bytes = pattern(5, 5 * kSuiteTile);

  {
    const auto lane = device->lane(kSuiteTile);
    send_all(*lane, *segment, bytes, kSuiteTile);
    lane->tile(*segment, 0, kSuiteTile);  // never sent
  }

  std::vector<std::byte> back(kSuiteTile);
  read_back(*device->lane(kSuiteTile), *segment, 4 * kSuiteTile, back);
  EXPECT_TRUE(std::ranges::equal(back, std::span(bytes).last(kSuiteTile)));
}

TEST_P(DeviceSuite, PublishedMemoryOutlivesItsDevice) {
  const std::vector<std::byte> bytes = pattern(6, 2 << 20);
  UniqueFd fd;
  {
    const auto device = open_device(info_);
    const auto segment = device->allocate(bytes.size());
    const auto lane = device->lane(kSuiteTile);
    send_all(*lane, *segment, bytes, kSuiteTile);
    lane->drain();
    fd = segment->publish();
  }

  const auto mapped = map_segment(info_, fd.get(), bytes.size());

  EXPECT_EQ(GetParam().read(mapped->address(), bytes.size()), bytes);
}

TEST_P(DeviceSuite, MappingOutlivesItsDescriptorAndOtherMappings) {
  const auto device = open_device(info_);
  const auto segment = device->allocate(kSegmentGranularity);
  const std::vector<std::byte> bytes = pattern(7, segment->bytes());
  const auto lane = device->lane(kSuiteTile);
  send_all(*lane, *segment, bytes, kSuiteTile);
  lane->drain();
  UniqueFd fd = segment->publish();

  auto first = map_segment(info_, fd.get(), bytes.size());
  const auto second = map_segment(info_, fd.get(), bytes.size());
  fd = UniqueFd();
  EXPECT_NE(first->address(), second->address());
  first.reset();

  EXPECT_EQ(GetParam().read(second->address(), bytes.size()), bytes);
}

TEST_P(DeviceSuite, PublishedDescriptorIsCloseOnExec) {
  const auto device = open_device(info_);
  const UniqueFd fd = device->allocate(kSegmentGranularity)->publish();

  EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_P(DeviceSuite, RejectsDescriptorThatIsNotASegment) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));

  EXPECT_THROW(map_segment(info_, null.get(), 2 << 20), Error);
  EXPECT_THROW(map_segment(info_, -1, 2 << 20), Error);
}

// Covers every floating-point type and each of the three target types.
TEST_P(DeviceSuite, ConvertsToSameBitsAsHost) {
  const auto device = open_device(info_);
  if (!device->converts()) GTEST_SKIP() << "this build has no kernels for the device";
  const auto lane = device->lane(kSuiteTile);
  for (int type = 0; type < kDTypeCount; ++type) {
    const auto from = static_cast<DType>(type);
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      if (!converts(from, to) || from == to || type_info(from).kind != TypeKind::kFloat) continue;
      SCOPED_TRACE(std::string(dtype_name(from)) + " to " + std::string(dtype_name(to)));
      std::uint64_t count = 0;
      const std::vector<std::byte> in = elements_of(from, count);
      const std::size_t width = type_info(to).bits() / 8;
      std::vector<std::byte> expected(count * width);
      const ConversionCounts host_counts = convert_elements(from, to, count, in, expected);
      const auto segment = device->allocate((expected.size() + (2 << 20)) >> 21 << 21);

      ConversionCounts counts;
      const std::size_t step =
          kSuiteTile /
          type_info(from).bits();  // a unit of 8 elements, so that each tile is whole bytes
      for (std::uint64_t first = 0; first < count; first += step * 8) {
        const std::uint64_t number = std::min<std::uint64_t>(step * 8, count - first);
        const std::size_t raw_bytes = number * type_info(from).bits() / 8;
        const auto tile = lane->raw_tile(*segment, first * width, raw_bytes);
        std::memcpy(tile.data(), in.data() + first * type_info(from).bits() / 8, raw_bytes);
        lane->send_converted(from, to, number, counts);
      }
      lane->drain();

      EXPECT_EQ(counts.nan, host_counts.nan);
      EXPECT_EQ(counts.out_of_range, host_counts.out_of_range);
      const UniqueFd fd = segment->publish();
      const auto mapped = map_segment(info_, fd.get(), segment->bytes());
      EXPECT_EQ(GetParam().read(mapped->address(), expected.size()), expected);
    }
  }
}

TEST_P(DeviceSuite, LanesConvertWithoutWaitingForEachOther) {
  const auto device = open_device(info_);
  if (!device->converts()) GTEST_SKIP() << "this build has no kernels for the device";
  const auto segment = device->allocate(kSegmentGranularity);
  const auto first = device->lane(kSuiteTile);
  const auto second = device->lane(kSuiteTile);
  const std::vector<std::byte> codes = pattern(11, 512);  // 256 elements of BF16
  std::vector<std::byte> expected(256 * 4);
  convert_elements(DType::kBF16, DType::kF32, 256, codes, expected);

  ConversionCounts counts;
  for (Lane* lane : {first.get(), second.get()}) {
    std::ranges::copy(codes, lane->raw_tile(*segment, 0, codes.size()).begin());
    lane->send_converted(DType::kBF16, DType::kF32, 256, counts);
  }
  std::vector<std::byte> back(expected.size());
  read_back(*second, *segment, 0, back);

  EXPECT_EQ(back, expected);
}

TEST_P(DeviceSuite, CountsEachItemSeparately) {
  const auto device = open_device(info_);
  if (!device->converts()) GTEST_SKIP() << "this build has no kernels for the device";
  const auto segment = device->allocate(kSegmentGranularity);
  const auto lane = device->lane(kSuiteTile);
  const std::vector<float> values{65520.0F, 1.0F, -1e30F, -65519.0F};  // two are out of F16's range
  constexpr std::size_t kItems = 700;

  std::deque<ConversionCounts> counts(kItems);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < kItems; ++i) {
      const auto tile = lane->raw_tile(*segment, i * 16, values.size() * sizeof(float));
      std::memcpy(tile.data(), values.data(), tile.size());
      lane->send_converted(DType::kF32, DType::kF16, i % values.size() + 1, counts[i]);
    }
    lane->drain();
  }

  for (std::size_t i = 0; i < kItems; ++i) {
    ASSERT_EQ(counts[i].out_of_range, i % values.size() < 2 ? 2U : 4U) << i;
    ASSERT_EQ(counts[i].nan, 0U);
  }
}

}  // namespace stfs::gpu::test
