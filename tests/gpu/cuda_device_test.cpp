// The CUDA back end: the contract that all devices share, and a driver with failing calls.
#include "tests/gpu/device_pattern.h"
#include "tests/gpu/device_suite.h"
#include "tests/gpu/fake_control.h"
#include "tests/support/files.h"
#include "tools/gpu/copier/transfer.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/driver.h"
#include "tools/gpu/device/lanes.h"
#include "tools/gpu/protocol/item.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Environment = std::map<std::string, std::string>;

std::vector<std::byte> read_device(std::uint64_t address, std::size_t size) {
  const CudaDriver& cuda = cuda_driver();
  CUdevice device = 0;
  CUcontext context = nullptr;
  cuda.check(cuda.cuDeviceGet(&device, 0), "cuDeviceGet");
  cuda.check(cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  cuda.check(cuda.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  std::vector<std::byte> bytes(size);
  const CUresult result = cuda.cuMemcpyDtoH(bytes.data(), address, size);
  cuda.check(cuda.cuCtxPopCurrent(&context), "cuCtxPopCurrent");
  cuda.check(cuda.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
  cuda.check(result, "cuMemcpyDtoH");
  return bytes;
}

DeviceUnderTest on_fake_driver(const std::string& name, const Environment& environment) {
  return {.name = name,
          .info =
              [environment] {
                configure_fake_driver(environment);
                return cuda_infos().at(0);
              },
          .read = read_device,
          .leaks = fake_driver_report};
}

std::vector<DeviceUnderTest> devices() {
  if (!is_fake_driver()) {
    return {{.name = "cuda",
             .info = [] { return cuda_infos().at(0); },
             .may_be_absent = true,
             .read = read_device}};
  }
  return {on_fake_driver("cuda_late", {{"STFS_FAKE_CUDA_LATE", "always"}}),
          on_fake_driver("cuda_out_of_step", {{"STFS_FAKE_CUDA_LATE", "random"}}),
          on_fake_driver("cuda_prompt", {{"STFS_FAKE_CUDA_LATE", "never"},
                                         {"STFS_FAKE_CUDA_READ_ONLY", "refused"}})};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSuite, testing::ValuesIn(devices()), name_of);

constexpr std::size_t kTile = 64 << 10;

// Tests that run only on the fake driver.
class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_fake_driver()) GTEST_SKIP() << "not the fake driver";
    configure_fake_driver();
  }
  void TearDown() override {
    if (is_fake_driver()) {
      EXPECT_EQ(fake_driver_report(), "");
      configure_fake_driver();
    }
  }
};

// Loads and maps `bytes` with all driver calls that stfs-gpu uses. Returns the mapped bytes.
std::vector<std::byte> load_and_map(std::span<const std::byte> bytes) {
  const DeviceInfo info = cuda_infos().at(0);
  UniqueFd fd;
  {
    const auto device = open_cuda(info);
    static_cast<void>(device->info());
    const auto segment = device->allocate(2 << 20);
    const auto lane = device->lane(kTile);
    send_all(*lane, *segment, bytes, kTile);
    if (device->converts()) {
      ConversionCounts counts;
      const auto tile = lane->raw_tile(*segment, 1 << 20, 512);
      std::ranges::fill(tile, std::byte{0x3c});
      lane->send_converted(DType::kBF16, DType::kF32, 256, counts);
      lane->drain();
    }
    std::vector<std::byte> back(kTile);
    read_back(*lane, *segment, 0, back);
    lane->drain();
    fd = segment->publish();
  }
  const auto mapped = map_cuda_segment(info, fd.get(), 2 << 20);
  return read_device(mapped->address(), bytes.size());
}

// --- each driver function fails, at each of its first calls

class CudaFailure : public testing::TestWithParam<const char*> {};

#define STFS_NAME_OF(name) #name,
constexpr std::array kFunctions{STFS_CUDA_FUNCTIONS(STFS_NAME_OF)};
#undef STFS_NAME_OF

TEST_P(CudaFailure, FailedCallIsOneErrorWithoutLeaks) {
  if (!is_fake_driver()) GTEST_SKIP() << "not the fake driver";
  const std::string function = GetParam();
  const std::vector<std::byte> bytes = pattern(8, 7 * kTile);
  // driver_test.cpp tests the calls that a process makes only once.
  for (std::size_t call = 1; call <= 12; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    configure_fake_driver({{"STFS_FAKE_CUDA_FAIL", function + ":" + std::to_string(call)}});

    std::optional<std::string> message;
    std::vector<std::byte> arrived;
    try {
      arrived = load_and_map(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(exit_status(error.code()), 5);
      message = error.what();
    }

    EXPECT_EQ(fake_driver_report(), "");
    if (fake_driver_count(function) < call) break;  // no call failed
    if (message) {
      EXPECT_NE(message->find(function), std::string::npos) << *message;
      EXPECT_EQ(message->find('\n'), std::string::npos) << *message;
    } else {
      EXPECT_EQ(arrived, bytes) << "bytes of a load that succeeded despite the failure";
    }
  }
  configure_fake_driver();
}

TEST_P(CudaFailure, OutOfMemoryIsOneErrorWithoutLeaks) {
  if (!is_fake_driver()) GTEST_SKIP() << "not the fake driver";
  const std::string function = GetParam();
  configure_fake_driver({{"STFS_FAKE_CUDA_FAIL", function + ":1:2"}});
  const std::vector<std::byte> bytes = pattern(9, 2 * kTile);

  std::vector<std::byte> arrived;
  bool has_thrown = false;
  try {
    arrived = load_and_map(bytes);
  } catch (const Error& error) {
    has_thrown = true;
    EXPECT_EQ(exit_status(error.code()), 5);
  }

  EXPECT_TRUE(has_thrown || arrived == bytes);
  EXPECT_EQ(fake_driver_report(), "");
  configure_fake_driver();
}

INSTANTIATE_TEST_SUITE_P(EachFunction, CudaFailure, testing::ValuesIn(kFunctions),
                         [](const auto& function) { return std::string(function.param); });

TEST_F(CudaDevice, FailureOfEssentialCallFailsLoad) {
  const std::vector<std::byte> bytes = pattern(8, 7 * kTile);
  for (const char* function :
       {"cuDeviceGetCount", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuMemCreate",
        "cuMemAddressReserve", "cuMemMap", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuStreamCreate",
        "cuMemcpyDtoHAsync", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
        "cuMemUnmap"}) {
    configure_fake_driver({{"STFS_FAKE_CUDA_FAIL", std::string(function) + ":1"}});
    EXPECT_THROW(load_and_map(bytes), Error) << function;
    EXPECT_EQ(fake_driver_report(), "") << function;
  }
}

TEST_F(CudaDevice, FailedLaneHasNoOperationInFlight) {
  for (const char* failure : {"cuEventRecord:3", "cuMemcpyHtoDAsync:3", "cuEventSynchronize:1",
                              "cuEventSynchronize:2", "cuMemcpyDtoHAsync:1"}) {
    SCOPED_TRACE(failure);
    configure_fake_driver({{"STFS_FAKE_CUDA_FAIL", failure}, {"STFS_FAKE_CUDA_LATE", "always"}});
    const auto device = open_cuda(cuda_infos().at(0));
    auto segment = device->allocate(2 << 20);
    const auto lane = device->lane(kTile);
    std::vector<std::byte> back(kTile);

    EXPECT_THROW(
        {
          send_all(*lane, *segment, pattern(1, 5 * kTile), kTile);
          read_back(*lane, *segment, 0, back);
        },
        Error);
    segment.reset();

    EXPECT_EQ(fake_driver_report().find("misuse"), std::string::npos) << fake_driver_report();
  }
}

// --- faults of asynchronous work

TEST_F(CudaDevice, DrainReportsAsynchronousFault) {
  const std::vector<std::byte> bytes = pattern(10, 7 * kTile);
  for (int operation = 1; operation <= 7; ++operation) {
    SCOPED_TRACE(operation);
    configure_fake_driver(
        {{"STFS_FAKE_CUDA_FAULT", std::to_string(operation)}, {"STFS_FAKE_CUDA_LATE", "always"}});
    const auto device = open_cuda(cuda_infos().at(0));
    const auto segment = device->allocate(2 << 20);
    const auto lane = device->lane(kTile);

    std::string message;
    try {
      send_all(*lane, *segment, bytes, kTile);
      lane->drain();
    } catch (const Error& error) {
      message = error.what();
    }

    EXPECT_NE(message.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << message;
    EXPECT_THROW(lane->drain(), Error) << "the fault is sticky";
  }
}

TEST_F(CudaDevice, FaultDuringLoadLeaksNothing) {
  const std::vector<std::byte> bytes = pattern(10, 7 * kTile);
  for (int operation = 1; operation <= 8;
       ++operation) {  // seven copies to the device, one copy back
    for (const char* late : {"always", "random", "never"}) {
      SCOPED_TRACE(std::string(late) + " " + std::to_string(operation));
      configure_fake_driver({{"STFS_FAKE_CUDA_FAULT", std::to_string(operation) + ":719"},
                             {"STFS_FAKE_CUDA_LATE", late}});
      EXPECT_THROW(load_and_map(bytes), Error);
      EXPECT_EQ(fake_driver_report(), "");
    }
  }
}

// --- machine code

// --- loads

// A source with `bytes` bytes, and an item that covers all of them.
class LoadedSource {
 public:
  explicit LoadedSource(std::size_t bytes) : bytes_(pattern(3, bytes)) {
    const std::string path = dir_ / "m";
    write_file(path, {reinterpret_cast<const char*>(bytes_.data()), bytes});
    const std::unique_ptr<const Source> source = Sources().open(path);
    items_.emplace_back(ItemRequest{.path = path,
                                    .tensor = "w",
                                    .version = source->token(),
                                    .source_size = bytes,
                                    .dtype = DType::kU8,
                                    .shape = {bytes},
                                    .slice = "",
                                    .as = std::nullopt});
  }

  Transferred load(Device& device, TransferOptions options) const {
    options.tile_bytes = kTile;
    return transfer(device, items_, lay_out(std::vector<std::uint64_t>{bytes_.size()}), options);
  }

 private:
  TempDir dir_;
  std::vector<std::byte> bytes_;
  std::vector<Item> items_;
};

TEST_F(CudaDevice, LaneIsReusedAfterItsSegmentsAreFreed) {
  const LoadedSource large(20 * kTile);
  const LoadedSource small(100);
  const auto device = open_cuda(cuda_infos().at(0));
  Lanes lanes;

  for (const LoadedSource* source : {&large, &small, &large})
    EXPECT_EQ(source->load(*device, {.verify = true, .lanes = &lanes}).segments.size(), 1U);
}

TEST_F(CudaDevice, VerifyReadsAheadWithoutBusyWaiting) {
  configure_fake_driver({{"STFS_FAKE_CUDA_LATE", "always"}});
  const LoadedSource source(20 * kTile);
  const auto device = open_cuda(cuda_infos().at(0));

  source.load(*device, {.workers = 1, .verify = true});

  EXPECT_EQ(fake_driver_count("peak reads back"), 2U);
  EXPECT_LE(fake_driver_count("spinning waits"), 1U) << "a lane may spin once, when it ends";
}

TEST_F(CudaDevice, ConvertsOnHostWithoutMachineCode) {
  configure_fake_driver({{"STFS_FAKE_CUDA_CODE", "none"}});
  const TempDir dir;
  const std::string path = dir / "m";
  write_file(path, std::string("\x80\x3f\x00\x40", 4));  // 1, 2 as BF16
  const std::unique_ptr<const Source> source = Sources().open(path);
  const std::vector<Item> items{Item({.path = path,
                                      .tensor = "w",
                                      .version = source->token(),
                                      .source_size = 4,
                                      .dtype = DType::kBF16,
                                      .shape = {2},
                                      .slice = "",
                                      .as = DType::kF32})};
  const auto device = open_cuda(cuda_infos().at(0));

  const Transferred result =
      transfer(*device, items, lay_out(std::vector<std::uint64_t>{8}), {.verify = true});

  EXPECT_TRUE(result.note.starts_with("1 tensor was converted on the host, which is slower: stfs"))
      << result.note;
  const auto mapped = map_cuda_segment(cuda_infos().at(0), result.segments[0].get(), 2 << 20);
  const std::vector<std::byte> found = read_device(mapped->address(), 8);
  EXPECT_EQ(std::memcmp(found.data(), "\0\0\x80\x3f\0\0\0\x40", 8), 0);
}

// --- lack of device memory

TEST_F(CudaDevice, OutOfMemoryReportsNeededAndFreeBytes) {
  configure_fake_driver({{"STFS_FAKE_CUDA_MEMORY", std::to_string(8 << 20)}});
  const auto device = open_cuda(cuda_infos().at(0));
  const auto held = device->allocate(6 << 20);

  try {
    device->allocate(4 << 20);
    FAIL() << "only 2 MiB are free";
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_EQ(error.needed(), 4U << 20);
    EXPECT_EQ(error.free(), 2U << 20);
  }
}

TEST_F(CudaDevice, MemoryIsFreedAfterLastDescriptorAndMapping) {
  const auto device = open_cuda(cuda_infos().at(0));
  const std::uint64_t free = device->info().free_bytes;

  auto segment = device->allocate(4 << 20);
  UniqueFd fd = segment->publish();
  segment.reset();
  EXPECT_EQ(device->info().free_bytes, free - (4 << 20));
  auto mapped = map_cuda_segment(cuda_infos().at(0), fd.get(), 4 << 20);
  fd = UniqueFd();
  EXPECT_EQ(device->info().free_bytes, free - (4 << 20));
  mapped.reset();

  EXPECT_EQ(device->info().free_bytes, free);
}

// --- several devices

TEST_F(CudaDevice, EachDeviceHasItsOwnMemory) {
  configure_fake_driver({{"STFS_FAKE_CUDA_DEVICES", "3"}});
  const std::vector<DeviceInfo> infos = cuda_infos();
  ASSERT_EQ(infos.size(), 3U);
  const auto first = open_cuda(infos[0]);
  const auto third = open_cuda(infos[2]);

  const auto segment = third->allocate(2 << 20);
  const auto lane = third->lane(kTile);
  send_all(*lane, *segment, pattern(1, kTile), kTile);
  lane->drain();

  EXPECT_EQ(first->info().free_bytes, first->info().total_bytes);
  EXPECT_EQ(third->info().free_bytes, third->info().total_bytes - (2 << 20));
  std::set<std::string> uuids;
  for (const DeviceInfo& info : infos) {
    uuids.insert(info.uuid);
    EXPECT_EQ(info.uuid.size(), 40U) << info.uuid;
    EXPECT_TRUE(info.uuid.starts_with("GPU-"));
  }
  EXPECT_EQ(uuids.size(), 3U);
  EXPECT_EQ(infos[2].id, "cuda:2");
  EXPECT_EQ(infos[2].pci, "0000:3d:00.0");
}

TEST_F(CudaDevice, OpensByUuidAndRefusesInvisibleDevice) {
  configure_fake_driver({{"STFS_FAKE_CUDA_DEVICES", "2"}});
  const DeviceInfo first = cuda_infos().at(0);
  configure_fake_driver({{"STFS_FAKE_CUDA_DEVICES", "2"}, {"CUDA_VISIBLE_DEVICES", "1,0"}});

  const UniqueFd fd = open_cuda(first)->allocate(2 << 20)->publish();

  const auto target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get()));
  EXPECT_NE(target.string().find("stfs_fake_cuda..0"), std::string::npos) << target;
  EXPECT_NO_THROW(map_cuda_segment(first, fd.get(), 2 << 20));
  EXPECT_THROW(map_cuda_segment(cuda_infos().at(0), fd.get(), 2 << 20), Error)
      << "the memory is on another device";
  configure_fake_driver({{"STFS_FAKE_CUDA_DEVICES", "2"}, {"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_THROW(open_cuda(first), Error);
}

// --- misuse of a lane

TEST_F(CudaDevice, RejectsInvalidSizesAndWritesAfterPublish) {
  const auto device = open_cuda(cuda_infos().at(0));
  EXPECT_THROW(device->allocate(0), Error);
  EXPECT_THROW(device->allocate((2 << 20) + 4096), Error);
  const auto segment = device->allocate(2 << 20);
  const auto lane = device->lane(kTile);
  const UniqueFd fd = segment->publish();

  EXPECT_THROW(lane->tile(*segment, 0, 1), Error);
  EXPECT_THROW(segment->publish(), Error);
  EXPECT_THROW(map_cuda_segment(cuda_infos().at(0), fd.get(), 4 << 20), Error);
  EXPECT_THROW(map_cuda_segment(cuda_infos().at(0), fd.get(), 4096), Error);
}

TEST_F(CudaDevice, OpenRejectsUnsuitableGranularity) {
  for (const std::size_t unit : {std::size_t{64} << 10, std::size_t{2} << 20}) {
    configure_fake_driver({{"STFS_FAKE_CUDA_GRANULARITY", std::to_string(unit)}});
    EXPECT_NO_THROW(open_cuda(cuda_infos().at(0))) << unit;
  }
  for (const std::size_t unit : {std::size_t{3} << 20, std::size_t{4} << 20, std::size_t{0}}) {
    configure_fake_driver({{"STFS_FAKE_CUDA_GRANULARITY", std::to_string(unit)}});
    EXPECT_THROW(open_cuda(cuda_infos().at(0)), Error) << unit;
  }
}

TEST_F(CudaDevice, LaneRejectsRangesOutsideSegment) {
  const auto device = open_cuda(cuda_infos().at(0));
  const auto segment = device->allocate(2 << 20);
  const auto lane = device->lane(kTile);

  EXPECT_THROW(lane->tile(*segment, (2 << 20) - 1, 2), Error);
  EXPECT_THROW(lane->tile(*segment, ~std::uint64_t{0}, 2), Error);
  EXPECT_THROW(lane->tile(*segment, 0, kTile + 1), Error);
  EXPECT_THROW(lane->send(), Error) << "no tile was handed out";
  if (device->converts()) {
    ConversionCounts counts;
    lane->raw_tile(*segment, (2 << 20) - 4, 4);
    EXPECT_THROW(lane->send_converted(DType::kBF16, DType::kF32, 2, counts), Error);
    lane->raw_tile(*segment, 0, 4);
    EXPECT_THROW(lane->send_converted(DType::kBF16, DType::kF32, 3, counts), Error);
  }
}

TEST_F(CudaDevice, FindingsNameDriverAndEachDevice) {
  configure_fake_driver({{"STFS_FAKE_CUDA_DEVICES", "2"}});

  const std::vector<std::string> findings = cuda_findings();

  const auto has = [&](const std::string& begin) {
    return std::ranges::any_of(findings, [&](const auto& line) { return line.starts_with(begin); });
  };
  EXPECT_TRUE(has("driver: "));
  EXPECT_TRUE(has("kernels: "));
  EXPECT_TRUE(has("cuda:0: Fake GPU 0"));
  EXPECT_TRUE(has("cuda:1: Fake GPU 1"));
  configure_fake_driver({{"STFS_FAKE_CUDA_MODE", "exclusive"}});
  EXPECT_NE(cuda_findings().back().find("one process at a time"), std::string::npos)
      << cuda_findings().back();
}

}  // namespace
}  // namespace stfs::gpu::test
