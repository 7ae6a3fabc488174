// transfer(), in host memory and on a test device with late copies, too little memory, or corrupted
// bytes.
#include "tools/gpu/copier/transfer.h"

#include "core/base/error.h"
#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/unit/late_source.h"
#include "tools/gpu/device/processors.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

// --- layouts

void expect_valid_layout(const std::vector<std::uint64_t>& sizes) {
  const Layout layout = lay_out(sizes);
  ASSERT_EQ(layout.placements.size(), sizes.size());
  std::vector<std::uint64_t> end(layout.segment_bytes.size(), 0);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto [segment, offset] = layout.placements[i];
    if (sizes[i] == 0) {
      EXPECT_EQ(segment, Placement::kNone);
      continue;
    }
    ASSERT_LT(segment, layout.segment_bytes.size());
    EXPECT_EQ(offset % kItemAlignment, 0u);
    EXPECT_GE(offset, end[segment]) << "items overlap or are out of order";
    end[segment] = offset + sizes[i];
    EXPECT_LE(end[segment], layout.segment_bytes[segment]);
    if (sizes[i] >= kOwnSegment) {
      EXPECT_EQ(offset, 0u);
      EXPECT_LT(layout.segment_bytes[segment], sizes[i] + kSegmentGranularity);
    }
  }
  std::uint64_t sum = 0;
  for (std::size_t s = 0; s < layout.segment_bytes.size(); ++s) {
    EXPECT_EQ(layout.segment_bytes[s] % kSegmentGranularity, 0u);
    EXPECT_LT(layout.segment_bytes[s] - end[s], kSegmentGranularity + kItemAlignment)
        << "the segment is larger than needed";
    sum += layout.segment_bytes[s];
  }
  EXPECT_EQ(layout.bytes(), sum);
}

TEST(GpuLayout, AnySizesGiveValidLayout) {
  RandomBytes random(1);
  expect_valid_layout({});
  expect_valid_layout({0, 0});
  expect_valid_layout({1});
  expect_valid_layout({kOwnSegment});
  expect_valid_layout({kOwnSegment - 1, 1, kOwnSegment + 1, 1, kOwnSegment - 1});
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> sizes(random.next() % 60);
    for (std::uint64_t& size : sizes)
      size = random.next() % (std::uint64_t{1} << (random.next() % 28));
    expect_valid_layout(sizes);
  }
}

TEST(GpuLayout, SmallItemsShareSegmentAndLargeItemsDoNot) {
  const Layout layout =
      lay_out(std::vector<std::uint64_t>{100, 0, 4096, kOwnSegment, 300, 2 * kOwnSegment});

  EXPECT_EQ(layout.segment_bytes.size(), 3u);
  EXPECT_EQ(layout.placements[0].segment, layout.placements[2].segment);
  EXPECT_EQ(layout.placements[0].segment, layout.placements[4].segment);
  EXPECT_NE(layout.placements[3].segment, layout.placements[5].segment);
}

TEST(GpuLayout, OverflowingWorkSaturates) {
  constexpr std::uint64_t kBytes = (std::uint64_t{1} << 61) - 1;  // the largest possible tensor
  const std::vector<Item> items(9, Item({.path = "/w/m.safetensors",
                                         .tensor = "w",
                                         .version = "v1",
                                         .source_size = kBytes,
                                         .offset = 0,
                                         .dtype = DType::kU8,
                                         .shape = {kBytes},
                                         .slice = "",
                                         .as = std::nullopt}));

  EXPECT_EQ(work_of(std::span(items).first(8), {}), 8 * kBytes);
  EXPECT_EQ(work_of(items, {}), ~std::uint64_t{0});
  EXPECT_EQ(work_of(std::span(items).first(5), {.verify = true}), ~std::uint64_t{0});
}

TEST(GpuLayout, OverflowingSizesDoNotWrap) {
  const std::uint64_t huge = ~std::uint64_t{0} - 100;

  for (const auto& sizes :
       {std::vector<std::uint64_t>{huge},
        std::vector<std::uint64_t>{std::uint64_t{1} << 63, std::uint64_t{1} << 63}}) {
    try {
      const Layout layout = lay_out(sizes);
      EXPECT_GE(layout.bytes(), std::uint64_t{1} << 63);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
    }
  }
}

// --- copies of a source and its items

class TransferTest : public ::testing::Test {
 protected:
  // Writes a source with `bytes` random bytes.
  void source(std::size_t bytes) {
    bytes_ = RandomBytes(11).bytes(bytes);
    write_file(path(), bytes_);
  }

  std::string path() const { return (dir_ / "m.safetensors").string(); }
  const std::string& bytes() const { return bytes_; }

  ItemRequest request(std::uint64_t offset, DType dtype, std::vector<std::uint64_t> shape,
                      const std::string& slice = "", std::optional<DType> as = {}) const {
    return {.path = path(),
            .tensor = "t" + std::to_string(offset),
            .version = open_source(path())->token(),
            .source_size = open_source(path())->size(),
            .offset = offset,
            .dtype = dtype,
            .shape = std::move(shape),
            .slice = slice,
            .as = as};
  }

  void add(std::uint64_t offset, std::uint64_t length) {
    items_.emplace_back(request(offset, DType::kU8, {length}));
  }

  Layout layout() const {
    std::vector<std::uint64_t> sizes;
    for (const Item& item : items_) sizes.push_back(item.bytes());
    return lay_out(sizes);
  }

  Transferred copy(Device& device, const TransferOptions& options = {}) {
    layout_ = layout();
    return transfer(device, items_, layout_, options);
  }

  // Returns the bytes of an item in the published segment.
  std::string found(const Transferred& result, std::size_t item) const {
    const auto [segment, offset] = layout_.placements[item];
    std::string out(static_cast<std::size_t>(items_[item].bytes()), '\0');
    if (segment == Placement::kNone) return out;
    const ssize_t n =
        ::pread(result.segments[segment].get(), out.data(), out.size(), static_cast<off_t>(offset));
    EXPECT_EQ(n, static_cast<ssize_t>(out.size()));
    return out;
  }

  // Returns the expected bytes of an item.
  std::string expected(std::size_t item) const {
    const LocalFile file(path());
    const Content content = items_[item].content({&file});
    std::string out(static_cast<std::size_t>(content.size()), '\0');
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(out))), 0);
    return out;
  }

  void expect_all(const Transferred& result) const {
    ASSERT_EQ(result.segments.size(), layout_.segment_bytes.size());
    for (std::size_t i = 0; i < items_.size(); ++i) {
      EXPECT_TRUE(found(result, i) == expected(i)) << items_[i].label();
    }
  }

  std::vector<Item> items_;
  Layout layout_;

 private:
  TempDir dir_;
  std::string bytes_;
};

ErrorCode code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kMountFailed;
}

TEST_F(TransferTest, TensorsArriveAtTheirPlacement) {
  source(44 << 20);
  add(0, 1);
  add(1, 511);
  add(512, 4096);
  add(9'999, 0);
  add(10'000, 34 << 20);
  add(100'001, 12'345'678);
  add(20 << 20, 24 << 20);
  const auto device = open_cpu();

  const Transferred result = copy(*device);

  expect_all(result);
  EXPECT_EQ(result.counts.size(), items_.size());
}

TEST_F(TransferTest, TileSizeAndWorkersDoNotChangeResult) {
  source(3'000'001);
  for (std::uint64_t at = 0; at < 2'900'000; at += 99'991) add(at, 77'777);
  const auto device = open_cpu();

  for (const unsigned workers : {1u, 3u, 16u}) {
    for (const std::size_t tile : {std::size_t{4096}, std::size_t{65536}, std::size_t{64} << 20}) {
      expect_all(copy(*device, {.workers = workers, .tile_bytes = tile, .verify = true}));
    }
  }
}

TEST_F(TransferTest, CopiesSlicesAndConversions) {
  source(1 << 20);
  for (const DType from : {DType::kF4, DType::kF6E3M2, DType::kF8E4M3, DType::kF16, DType::kBF16,
                           DType::kF32, DType::kF64}) {
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      items_.emplace_back(request(8, from, {40, 64, 8}, "", to));
      items_.emplace_back(request(16, from, {40, 64, 8}, "3:40:7,::2", to));
    }
    items_.emplace_back(request(24, from, {40, 64, 8}, ":,5:6"));
    items_.emplace_back(request(24, from, {40, 64, 8}, "7"));
  }
  const auto device = open_cpu();

  const Transferred result = copy(*device, {.tile_bytes = 4096, .verify = true});

  expect_all(result);
}

// Opens a file as a remote source. Its bytes arrive only after a request.
class LateSources : public Sources {
 public:
  explicit LateSources(bool is_prompt = true) : is_prompt_(is_prompt) {}

  std::unique_ptr<const Source> open(const std::string& name) override {
    auto late = std::make_unique<LateSource>(name);
    late->be_remote();
    late->take_bytes_away();
    if (is_prompt_) late->deliver_at_once();
    source = late.get();
    on_open(*late);
    return late;
  }

  LateSource* source = nullptr;
  std::function<void(LateSource&)> on_open = [](LateSource&) {};

 private:
  bool is_prompt_;
};

TEST_F(TransferTest, PrefetchesTilesFromRemoteSource) {
  source(3 << 20);
  add(0, 1 << 20);
  items_.emplace_back(request(1 << 20, DType::kF16, {1 << 19}, "", DType::kF32));
  items_.emplace_back(request(2 << 20, DType::kU8, {1024, 1024}, ":,3:5"));
  const auto device = open_cpu();
  LateSources sources;
  std::vector<ByteRange> prefetched;
  TransferOptions options{.workers = 2, .tile_bytes = 65536, .verify = true};
  options.sources = &sources;
  options.progress = [&](std::uint64_t) {
    if (prefetched.empty()) prefetched = sources.source->prefetched();
  };
  options.workers = 1;

  const Transferred result = copy(*device, options);

  expect_all(result);
  EXPECT_FALSE(prefetched.empty()) << "the next tiles are fetched while the first is copied";
}

// If bytes of a tile are evicted before they are read, the tile is read again: first all of it,
// then shorter and shorter parts.
TEST_F(TransferTest, CountsValuesReadAgainOnce) {
  constexpr std::uint64_t kFew = 100;
  constexpr std::uint64_t kMany = 300'003;  // a quarter of the tile ends inside an element
  constexpr std::uint64_t kBegin = 1 << 20;
  std::string bytes(kBegin + kMany * sizeof(float), '\0');
  const float huge = 1e30F;  // infinite as F16
  for (std::size_t at = 0; at < bytes.size(); at += sizeof huge) {
    std::memcpy(bytes.data() + at, &huge, sizeof huge);
  }
  write_file(path(), bytes);
  items_.emplace_back(request(0, DType::kF32, {kFew}, "", DType::kF16));
  items_.emplace_back(request(kBegin, DType::kF32, {kMany}, "", DType::kF16));
  const auto device = open_cpu();
  LateSources sources;
  std::shared_ptr<const std::size_t> wants;  // the copy closes the source
  sources.on_open = [&](LateSource& late) {
    wants = late.counted_wants();
    late.bring_all_back();
    late.be_damaged_at({kBegin + 10, kBegin + 300'000, kBegin + 600'000, kBegin + 900'000});
  };
  TransferOptions options{.workers = 1};
  options.sources = &sources;

  const Transferred result = copy(*device, options);

  expect_all(result);
  EXPECT_GE(*wants, 4U);
  EXPECT_EQ(result.counts[0].out_of_range, kFew);
  EXPECT_EQ(result.counts[1].out_of_range, kMany);
}

TEST_F(TransferTest, SourceChangedAfterLastReadIsAnError) {
  source(1 << 20);
  add(0, 1 << 20);
  const auto device = open_cpu();
  TransferOptions options;
  std::uint64_t copied = 0;
  options.progress = [&](std::uint64_t bytes) {
    copied += bytes;
    if (copied == 1 << 20) std::filesystem::resize_file(path(), 1 << 19);
  };

  EXPECT_EQ(code_of([&] { copy(*device, options); }), ErrorCode::kUnreadable);
  EXPECT_EQ(copied, 1U << 20);
}

TEST_F(TransferTest, StopEndsWaitForNetwork) {
  source(1 << 20);
  add(0, 1 << 20);
  const auto device = open_cpu();
  std::atomic<bool> stop = false;
  std::unique_ptr<std::thread> stopper;
  LateSources sources(false);
  sources.on_open = [&](LateSource& late) {
    stopper = std::make_unique<std::thread>([&] {
      while (late.wants() == 0) std::this_thread::yield();
      stop = true;
    });
  };
  TransferOptions options;
  options.workers = 1;
  options.stop = &stop;
  options.sources = &sources;

  EXPECT_EQ(code_of([&] { copy(*device, options); }), ErrorCode::kDeviceFailed);
  stopper->join();
}

TEST_F(TransferTest, FailureEndsWaitsInOtherWorkers) {
  source(1 << 20);
  add(0, 1 << 20);
  const auto device = open_cpu();
  LateSources sources(false);
  // The bytes of the first worker never arrive, and the request of the second fails.
  sources.on_open = [](LateSource& late) { late.refuse_after(1); };
  TransferOptions options{.workers = 2, .tile_bytes = 512 << 10};
  options.sources = &sources;

  EXPECT_EQ(code_of([&] { copy(*device, options); }), ErrorCode::kUnreadable);
}

TEST_F(TransferTest, CountsEachItemSeparately) {
  std::vector<float> values(300'000, 1.0F);
  values[0] = 1e30F;
  values[70'001] = -1e30F;
  values[150'000] = std::numeric_limits<float>::quiet_NaN();
  values[299'999] = std::numeric_limits<float>::infinity();
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  write_file(path(), bytes);
  items_.emplace_back(request(0, DType::kF32, {100'000}, "", DType::kF16));
  items_.emplace_back(request(400'000, DType::kF32, {200'000}, "", DType::kF16));
  items_.emplace_back(request(0, DType::kF32, {300'000}));
  const auto device = open_cpu();

  const Transferred result = copy(*device, {.workers = 3, .tile_bytes = 4096, .verify = true});

  EXPECT_EQ(result.counts[0].out_of_range, 2u);
  EXPECT_EQ(result.counts[0].nan, 0u);
  EXPECT_EQ(result.counts[1].out_of_range, 0u);
  EXPECT_EQ(result.counts[1].nan, 1u);
  EXPECT_EQ(result.counts[2].nan, 0u) << "unconverted values are not counted";
}

TEST_F(TransferTest, ProgressSumsToWorkWithoutPadding) {
  source(40 << 20);
  for (std::uint64_t i = 0; i < 64; ++i) add(i, 1 + i * 37);
  add(0, 1 << 20);
  add(0, kOwnSegment + 5);
  items_.emplace_back(request(0, DType::kBF16, {3000}, "", DType::kF32));
  add(0, 100);
  add(0, 0);
  const auto device = open_cpu();
  for (const std::size_t tile : {std::size_t{4096}, std::size_t{1} << 20}) {
    for (const bool verify : {false, true}) {
      std::atomic<std::uint64_t> done = 0;
      TransferOptions options{.tile_bytes = tile, .verify = verify};
      options.progress = [&](std::uint64_t bytes) { done += bytes; };

      copy(*device, options);

      EXPECT_EQ(done, work_of(items_, options)) << tile;
    }
  }
}

TEST_F(TransferTest, RefusesSourceWithOtherVersion) {
  source(1 << 20);
  add(0, 1000);
  write_file(path(), std::string(1 << 20, 'n'));
  const auto device = open_cpu();

  EXPECT_EQ(code_of([&] { copy(*device); }), ErrorCode::kUnreadable);
  std::filesystem::remove(path());
  EXPECT_EQ(code_of([&] { copy(*device); }), ErrorCode::kUnreadable);
}

// --- events during a copy, after the first tile
class TransferInterrupted : public TransferTest, public ::testing::WithParamInterface<bool> {
 protected:
  // Calls `event` once, after the first tile has been copied or compared.
  ErrorCode after_first_tile(const std::function<void()>& event) {
    source(1 << 20);
    add(0, 1 << 20);
    const auto device = open_cpu();
    const std::size_t before = open_descriptors();
    // std::call_once would hang under ThreadSanitizer after an exception.
    std::mutex mutex;
    bool is_called = false;
    TransferOptions options{.workers = 2, .tile_bytes = 4096, .verify = GetParam()};
    options.progress = [&](std::uint64_t) {
      const std::lock_guard lock(mutex);
      if (!std::exchange(is_called, true)) event();
    };
    const ErrorCode code = code_of([&] { copy(*device, options); });
    EXPECT_EQ(open_descriptors(), before) << "a segment was not freed";
    return code;
  }
};

TEST_P(TransferInterrupted, ChangedSourceFailsTransfer) {
  const std::vector<std::function<void()>> changes{
      [&] { std::filesystem::resize_file(path(), 5000); },
      [&] { write_file(path(), std::string(1 << 20, 'z')); },
      [&] { std::filesystem::resize_file(path(), 2 << 20); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    items_.clear();
    EXPECT_EQ(after_first_tile(changes[i]), ErrorCode::kUnreadable) << i;
  }
}

TEST_P(TransferInterrupted, ExceptionFromProgressFailsTransfer) {
  EXPECT_EQ(after_first_tile([] { throw Error(ErrorCode::kDeviceFailed, "", "enough"); }),
            ErrorCode::kDeviceFailed);
}

INSTANTIATE_TEST_SUITE_P(Gpu, TransferInterrupted, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "Verifying" : "Copying"; });

TEST_F(TransferTest, ReadsReplacedSourceToItsEnd) {
  source(1 << 20);
  add(0, 1 << 20);
  const std::string old = bytes();
  const auto device = open_cpu();
  std::once_flag once;
  TransferOptions options{.tile_bytes = 4096};
  options.progress = [&](std::uint64_t) {
    std::call_once(once, [&] {
      write_file(path() + ".new", std::string(1 << 20, 'z'));
      std::filesystem::rename(path() + ".new", path());
    });
  };

  const Transferred result = copy(*device, options);

  EXPECT_TRUE(found(result, 0) == old);
}

TEST_F(TransferTest, StopEndsTransferSoon) {
  source(4 << 20);
  add(0, 4 << 20);
  const auto device = open_cpu();
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> tiles = 0;
  TransferOptions options{.workers = 2, .tile_bytes = 4096, .stop = &stop};
  options.progress = [&](std::uint64_t) {
    stop = true;
    ++tiles;
  };

  EXPECT_EQ(code_of([&] { copy(*device, options); }), ErrorCode::kDeviceFailed);
  EXPECT_LE(tiles, 2u) << "at most one more tile per worker";
}

TEST_F(TransferTest, RejectsInvalidTileSizesAndWorkers) {
  source(4096);
  add(0, 4096);
  const auto device = open_cpu();

  for (const std::size_t tile : {0U, 1U, 4095U, 5000U, (64U << 20) + 4096}) {
    EXPECT_EQ(code_of([&] { copy(*device, {.tile_bytes = tile}); }), ErrorCode::kUsage) << tile;
  }
  EXPECT_EQ(code_of([&] { copy(*device, {.workers = 65}); }), ErrorCode::kUsage);
}

// --- a device with copies that arrive late and out of order, as on a GPU. It detects misuse

struct Fault {
  int allocations = -1;       // number of allocations that succeed; -1: all
  int sends = -1;             // number of sends over all lanes that succeed; -1: all
  int drains = -1;            // number of drains over all lanes that succeed; -1: all
  bool loses_a_byte = false;  // corrupts one byte of the first copy
  bool converts = false;      // lanes can convert
  std::uint64_t free = std::uint64_t{1} << 40;
};

class FakeDevice;

class FakeSegment : public DeviceSegment {
 public:
  FakeSegment(FakeDevice& device, std::uint64_t bytes);
  ~FakeSegment() override;
  std::uint64_t bytes() const override { return memory_.size(); }
  UniqueFd publish() override;

  std::vector<std::byte>& memory() { return memory_; }
  std::atomic<int> in_flight = 0;

 private:
  FakeDevice& device_;
  std::vector<std::byte> memory_;
};

class FakeDevice : public Device {
 public:
  explicit FakeDevice(const Fault& fault = {}) : fault_(fault) {}
  ~FakeDevice() override {
    EXPECT_EQ(segments, 0) << "a segment was not freed";
    EXPECT_EQ(lanes, 0) << "a lane was not ended";
  }

  DeviceInfo info() const override {
    return {.id = "fake:0",
            .name = "late memory",
            .uuid = "GPU-fake",
            .pci = "",
            .total_bytes = std::uint64_t{1} << 40,
            .free_bytes = fault_.free};
  }
  bool converts() const override { return fault_.converts; }
  unsigned default_workers() const override { return 3; }
  std::span<const int> processors() const override { return near; }
  std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) override {
    EXPECT_EQ(bytes % kSegmentGranularity, 0u);
    if (fault_.allocations >= 0 && allocations++ >= fault_.allocations) {
      throw OutOfDeviceMemory("fake:0", bytes, 0);
    }
    return std::make_unique<FakeSegment>(*this, bytes);
  }
  std::unique_ptr<Lane> lane(std::size_t tile_bytes) override;

  // Counts a call. Returns true if it exceeds `max`, unless that is -1.
  static bool fails(int max, std::atomic<int>& count) { return max >= 0 && count++ >= max; }

  const Fault fault_;
  std::vector<int> near;
  int allocations = 0;
  std::atomic<int> sends = 0;
  std::atomic<int> drains = 0;
  std::atomic<int> segments = 0;
  std::atomic<int> lanes = 0;
  std::atomic<int> published = 0;
  std::atomic<std::size_t> pinned = 0;
  std::atomic<std::size_t> max_pinned = 0;
};

FakeSegment::FakeSegment(FakeDevice& device, std::uint64_t bytes)
    : device_(device), memory_(bytes, std::byte{0xdd}) {
  ++device_.segments;
}

FakeSegment::~FakeSegment() {
  EXPECT_EQ(in_flight, 0) << "freed while copies were in flight";
  --device_.segments;
}

UniqueFd FakeSegment::publish() {
  EXPECT_EQ(in_flight, 0) << "published while copies were in flight";
  ++device_.published;
  UniqueFd fd(::memfd_create("fake", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(fd.get(), memory_.data(), memory_.size(), 0),
            static_cast<ssize_t>(memory_.size()));
  return fd;
}

class FakeLane : public Lane {
 public:
  FakeLane(FakeDevice& device, std::size_t tile_bytes)
      : device_(device), tiles_(3, std::vector<std::byte>(tile_bytes)) {
    ++device_.lanes;
    const std::size_t now = device_.pinned += 3 * tile_bytes;
    std::size_t max = device_.max_pinned;
    while (max < now && !device_.max_pinned.compare_exchange_weak(max, now)) {
    }
  }
  ~FakeLane() override {
    while (!copies_.empty()) arrive();
    device_.pinned -= 3 * tiles_[0].size();
    --device_.lanes;
  }

  std::span<std::byte> tile(DeviceSegment& segment, std::uint64_t offset,
                            std::size_t length) override {
    auto& fake = static_cast<FakeSegment&>(segment);
    EXPECT_LE(length, tiles_[0].size());
    EXPECT_LE(offset + length, fake.memory().size());
    return hand_out(fake, offset, length);
  }

  void send() override {
    if (FakeDevice::fails(device_.fault_.sends, device_.sends)) {
      throw Error(ErrorCode::kDeviceFailed, "fake:0", "the copy failed");
    }
    if (device_.fault_.sends < 0) ++device_.sends;
    ++next_.segment->in_flight;
    copies_.push_back(next_);
  }

  std::span<std::byte> raw_tile(DeviceSegment& segment, std::uint64_t offset,
                                std::size_t raw_bytes) override {
    EXPECT_TRUE(device_.fault_.converts);
    EXPECT_LE(raw_bytes, tiles_[0].size());
    return hand_out(static_cast<FakeSegment&>(segment), offset, raw_bytes);
  }

  void send_converted(DType from, DType to, std::uint64_t count,
                      ConversionCounts& counts) override {
    next_.converts = true;
    next_.from = from;
    next_.to = to;
    next_.count = count;
    next_.counts = &counts;
    send();
  }

  void read_ahead(DeviceSegment& segment, std::uint64_t offset, std::size_t length) override {
    drain();
    EXPECT_LE(length, tiles_[0].size());
    EXPECT_LE(reads_.size(), 1u);
    const std::span memory(static_cast<FakeSegment&>(segment).memory());
    const auto part = memory.subspan(static_cast<std::size_t>(offset), length);
    reads_.emplace_back(part.begin(), part.end());
  }

  std::span<const std::byte> read_back() override {
    read_ = std::move(reads_.front());
    reads_.pop_front();
    return read_;
  }

  void drain() override {
    // The last copy arrives first, because the order of copies is not guaranteed.
    std::ranges::reverse(copies_);
    while (!copies_.empty()) arrive();
    if (FakeDevice::fails(device_.fault_.drains, device_.drains)) {
      throw Error(ErrorCode::kDeviceFailed, "fake:0", "a copy has failed");
    }
  }

 private:
  struct Copy {
    FakeSegment* segment = nullptr;
    std::uint64_t offset = 0;
    std::span<std::byte> bytes = {};
    bool converts = false;
    DType from = DType::kU8;
    DType to = DType::kU8;
    std::uint64_t count = 0;
    ConversionCounts* counts = nullptr;
  };

  std::span<std::byte> hand_out(FakeSegment& segment, std::uint64_t offset, std::size_t length) {
    if (copies_.size() == tiles_.size()) arrive();
    std::vector<std::byte>& tile = tiles_[turn_++ % tiles_.size()];
    std::ranges::fill(tile, std::byte{0xee});
    next_ = {.segment = &segment, .offset = offset, .bytes = {tile.data(), length}};
    return next_.bytes;
  }

  void arrive() {
    const Copy copy = copies_.front();
    copies_.pop_front();
    std::byte* out = copy.segment->memory().data() + copy.offset;
    if (copy.converts) {
      *copy.counts += convert_elements(
          copy.from, copy.to, copy.count, copy.bytes,
          std::span(out, static_cast<std::size_t>(copy.count * type_info(copy.to).bits() / 8)));
    } else {
      std::memcpy(out, copy.bytes.data(), copy.bytes.size());
    }
    if (device_.fault_.loses_a_byte && copy.offset == 0) out[77] ^= std::byte{1};
    std::ranges::fill(copy.bytes, std::byte{0xee});
    --copy.segment->in_flight;
  }

  FakeDevice& device_;
  std::vector<std::vector<std::byte>> tiles_;
  std::size_t turn_ = 0;
  Copy next_;
  std::deque<Copy> copies_;
  std::deque<std::vector<std::byte>> reads_;
  std::vector<std::byte> read_;  // the result of the last read_back()
};

std::unique_ptr<Lane> FakeDevice::lane(std::size_t tile_bytes) {
  return std::make_unique<FakeLane>(*this, tile_bytes);
}

TEST_F(TransferTest, PublishesAfterLateCopiesWithThreePinnedTilesPerWorker) {
  source(3 << 20);
  for (std::uint64_t at = 0; at < (3 << 20) - 60'000; at += 55'555) add(at, 54'321);
  FakeDevice device;

  const Transferred result = copy(device, {.workers = 4, .tile_bytes = 8192, .verify = true});

  expect_all(result);
  EXPECT_LE(device.max_pinned, 4u * 3 * 8192);
  EXPECT_EQ(device.pinned, 0u);
}

// Returns the processors on which this thread may run.
std::vector<int> own_processors() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> found;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<unsigned>(i), &set)) found.push_back(i);
  }
  return found;
}

TEST_F(TransferTest, WorkersRunNearDeviceAndCallerRegainsProcessors) {
  source(1 << 20);
  add(0, 1 << 20);
  const std::vector<int> before = own_processors();
  FakeDevice device;
  device.near = {before.back(), CPU_SETSIZE - 1};
  std::mutex mutex;
  std::set<std::vector<int>> seen;

  copy(device, {.workers = 3, .tile_bytes = 4096, .progress = [&](std::uint64_t) {
                  const std::lock_guard lock(mutex);
                  seen.insert(own_processors());
                }});

  EXPECT_EQ(seen, (std::set<std::vector<int>>{{before.back()}}));
  EXPECT_EQ(own_processors(), before);
}

TEST(Processors, ReadsLocalCpulistOfDevice) {
  const TempDir root;
  const std::string device = root / "sys/bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(device);
  const std::string path = root.path().string();

  EXPECT_TRUE(local_processors("0000:3b:00.0", path).empty());
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::vector<int>>>{
           {"2-4,8\n", {2, 3, 4, 8}}, {"0\n", {0}}, {"\n", {}}, {"x\n", {}}, {"1-x\n", {}}}) {
    write_file(device + "/local_cpulist", text);
    EXPECT_EQ(local_processors("0000:3b:00.0", path), expected) << text;
  }
}

TEST(Processors, ForbiddenProcessorsDoNotChangeAffinity) {
  const std::vector<int> before = own_processors();
  const OnProcessors none(std::vector<int>{CPU_SETSIZE - 1});

  EXPECT_EQ(own_processors(), before);
}

TEST_F(TransferTest, DeviceConversionsEqualHostConversions) {
  source(2 << 20);
  for (const DType from :
       {DType::kF4, DType::kF6E2M3, DType::kF8E5M2, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      items_.emplace_back(request(40, from, {30'000}, "", to));
      items_.emplace_back(request(48, from, {100, 64}, "::3,4:40", to));
      add(3, 1000);
    }
  }
  FakeDevice device({.converts = true});
  FakeDevice plain;

  const Transferred converted = copy(device, {.tile_bytes = 4096, .verify = true});
  expect_all(converted);
  const Transferred by_host = copy(plain, {.tile_bytes = 4096});

  for (std::size_t i = 0; i < items_.size(); ++i) {
    EXPECT_EQ(converted.counts[i].nan, by_host.counts[i].nan) << items_[i].label();
    EXPECT_EQ(converted.counts[i].out_of_range, by_host.counts[i].out_of_range)
        << items_[i].label();
  }
}

TEST_F(TransferTest, VerifyNamesTensorAndWrongByte) {
  source(1 << 20);
  add(0, 1 << 20);
  FakeDevice device({.loses_a_byte = true});

  try {
    copy(device, {.tile_bytes = 4096, .verify = true});
    ADD_FAILURE() << "a wrong byte was not detected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeviceFailed);
    EXPECT_NE(std::string(error.what()).find("::t0\": byte 77 "), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(device.published, 0);
}

TEST_F(TransferTest, FailureFreesAllAndPublishesNothing) {
  source(1 << 20);
  for (std::uint64_t at = 0; at < (1 << 20); at += 1 << 18) add(at, 1 << 18);
  for (const int sends : {0, 1, 7, 100}) {
    FakeDevice device({.sends = sends});
    EXPECT_EQ(code_of([&] { copy(device, {.tile_bytes = 4096}); }), ErrorCode::kDeviceFailed);
    EXPECT_EQ(device.published, 0);
  }
  for (const int drains : {0, 1, 2, 5}) {
    FakeDevice device({.drains = drains});
    EXPECT_EQ(code_of([&] { copy(device, {.tile_bytes = 4096, .verify = true}); }),
              ErrorCode::kDeviceFailed);
    EXPECT_EQ(device.published, 0);
  }
}

TEST_F(TransferTest, FailedAllocationFreesEarlierSegments) {
  source(1 << 20);
  for (int i = 0; i < 3; ++i) items_.emplace_back(request(0, DType::kU8, {1 << 20}, "", {}));
  layout_ = {.segment_bytes = {kSegmentGranularity, kSegmentGranularity, kSegmentGranularity},
             .placements = {{0, 0}, {1, 0}, {2, 0}}};
  FakeDevice device({.allocations = 2});

  EXPECT_THROW(transfer(device, items_, layout_, {}), OutOfDeviceMemory);
  EXPECT_EQ(device.segments, 0);
}

TEST_F(TransferTest, AllocatesNothingIfKeepFreeLeavesTooLittle) {
  source(4096);
  add(0, 4096);
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  struct Row {
    std::uint64_t free, keep_free, needed;
  };
  for (const Row& row : {Row{kSegmentGranularity - 1, 0, kSegmentGranularity},
                         {kSegmentGranularity, 1, kSegmentGranularity + 1},
                         {std::uint64_t{1} << 40, kAll, kAll}}) {
    FakeDevice device({.allocations = 0, .free = row.free});
    try {
      copy(device, {.keep_free = row.keep_free});
      ADD_FAILURE() << row.free;
    } catch (const OutOfDeviceMemory& error) {
      EXPECT_EQ(error.needed(), row.needed);
      EXPECT_EQ(error.free(), row.free);
    }
    EXPECT_EQ(device.allocations, 0);
  }
}

}  // namespace
}  // namespace stfs::gpu::test
