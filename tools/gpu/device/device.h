// Memory that tensors are copied into: that of a GPU, or of the host.
//
//   Device          one of them; says what it is and how much is free
//   DeviceSegment   an allocation that a file descriptor keeps alive and that other processes map
//   Lane            the way bytes take to it: a worker's own tiles, and its own order of copies
//
// A lane hands out a tile, the caller fills it, the lane sends it on. Of a GPU's lane the tiles are
// pinned memory and what is sent is an asynchronous copy; of the host's, a tile is the place in the
// segment itself and nothing is left to send.
//
// Everything throws Error kDeviceFailed. Thread safety: a Device may be used by many threads, a
// Lane by one at a time. Lifetime: the device outlives its segments and lanes, a segment the lanes
// that were used with it, or their drain().
#pragma once

#include "core/base/posix.h"
#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::gpu {

struct DeviceInfo {
  std::string id;    // what --device takes: "cuda:0", "cpu"
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-6f4ed8fb-...", as nvidia-smi prints it; "CPU-" and the boot's id
  std::string pci;   // "0000:3b:00.0"; empty for the host
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // of a GPU known only when it is open: from Device::info()
};

// No room for an allocation: what may be answered by making some.
class OutOfDeviceMemory : public Error {
 public:
  OutOfDeviceMemory(std::string_view place, std::uint64_t needed, std::uint64_t free);

  std::uint64_t needed() const { return needed_; }  // bytes
  std::uint64_t free() const { return free_; }      // bytes

 private:
  std::uint64_t needed_;
  std::uint64_t free_;
};

// What segments are multiples of on every device, bytes: huge pages of the host, and what drivers
// give on all GPUs that stfs supports. Who lays out (the holder) has no device to ask.
inline constexpr std::uint64_t kSegmentGranularity = 2 << 20;

class DeviceSegment {
 public:
  DeviceSegment() = default;
  DeviceSegment(const DeviceSegment&) = delete;
  DeviceSegment& operator=(const DeviceSegment&) = delete;
  virtual ~DeviceSegment() = default;

  virtual std::uint64_t bytes() const = 0;  // a multiple of kSegmentGranularity

  // No more is written: gives up this object's own mapping and returns the descriptor that the
  // memory lives by. Host memory is sealed, so that no one who maps it can change it. Call once,
  // after the lanes have drained.
  virtual UniqueFd publish() = 0;
};

// What a conversion met: values that are finite in the source and not in the result, and NaNs.
struct ConversionCounts {
  std::uint64_t out_of_range = 0;
  std::uint64_t nan = 0;

  ConversionCounts& operator+=(const ConversionCounts& other) {
    out_of_range += other.out_of_range;
    nan += other.nan;
    return *this;
  }
};

class Lane {
 public:
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  virtual ~Lane() = default;  // drains; what fails then is lost

  // A place to put what shall stand at [offset, offset+length) of the segment. length is at most
  // the tile size that the lane was made with. Waits until a tile is free. Valid until send().
  virtual std::span<std::byte> tile(DeviceSegment& segment, std::uint64_t offset,
                                    std::size_t length) = 0;

  // Sends the tile that was handed out last.
  virtual void send() = 0;

  // The same for bytes that the device shall convert: `raw_bytes` of them, `count` elements of
  // `from`, a TypeKind::kFloat, become elements of `to` (F32, F16 or BF16) at `offset`. Only when
  // Device::converts(). The counts are added to, at the latest by drain().
  virtual std::span<std::byte> raw_tile(DeviceSegment& segment, std::uint64_t offset,
                                        std::size_t raw_bytes) = 0;
  virtual void send_converted(DType from, DType to, std::uint64_t count,
                              ConversionCounts& counts) = 0;

  // Fills `out` (at most a tile) from the segment, after everything that was sent has arrived.
  virtual void read_back(DeviceSegment& segment, std::uint64_t offset,
                         std::span<std::byte> out) = 0;

  // Waits until everything that was sent has arrived. Throws what failed since the last time.
  virtual void drain() = 0;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual DeviceInfo info() const = 0;

  // Whether lanes convert: there are kernels for this device in this build.
  virtual bool converts() const = 0;

  // Workers that a copy takes when nobody says how many.
  virtual unsigned default_workers() const = 0;

  // A new segment of `bytes`, a multiple of kSegmentGranularity. Throws OutOfDeviceMemory too. What
  // the host promises is not checked against what it has: ask info() before.
  virtual std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) = 0;

  // A lane with three tiles of `tile_bytes` each.
  virtual std::unique_ptr<Lane> lane(std::size_t tile_bytes) = 0;
};

// A segment in this process's address space, by the descriptor it was published as: what a user of
// resident tensors holds.
class MappedSegment {
 public:
  MappedSegment() = default;
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  virtual ~MappedSegment() = default;  // unmaps

  // Where it begins: a host address (mapped read-only) or a CUdeviceptr.
  virtual std::uint64_t address() const = 0;
};

// Every device of this machine that can be used, the host last. `why_no_cuda`, when given, is told
// in a line why no GPU is among them.
std::vector<DeviceInfo> list_devices(std::string* why_no_cuda = nullptr);

// The device that --device names: "cuda:N", a UUID ("GPU-...", or its beginning when that is
// unambiguous), or "cpu". Throws Error kUsage for what is no device's name, kDeviceFailed when it
// is not there.
DeviceInfo find_device(const std::string& name);

// Opens it: for a GPU, makes its context current for the calls made through it.
std::unique_ptr<Device> open_device(const DeviceInfo& info);

// Maps a segment of `bytes` that was published by the device with this UUID. The descriptor may be
// closed afterwards.
std::unique_ptr<MappedSegment> map_segment(const DeviceInfo& info, int fd, std::uint64_t bytes);

// The back ends. The second throws kDeviceFailed, with the reason, where there is no driver, and
// where stfs was built without the CUDA Toolkit.
DeviceInfo cpu_info();
std::unique_ptr<Device> open_cpu();
std::unique_ptr<MappedSegment> map_cpu_segment(int fd, std::uint64_t bytes);

std::vector<DeviceInfo> cuda_infos();
std::unique_ptr<Device> open_cuda(const DeviceInfo& info);
std::unique_ptr<MappedSegment> map_cuda_segment(const DeviceInfo& info, int fd,
                                                std::uint64_t bytes);

// What doctor says of the CUDA back end: lines of "subject: finding".
std::vector<std::string> cuda_findings();

}  // namespace stfs::gpu
