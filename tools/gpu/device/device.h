// Memory that tensors are copied into: a GPU's, or the host's.
//
//   Device          one GPU, or the host; reports its size and free memory
//   DeviceSegment   an allocation that a file descriptor keeps alive and other processes can map
//   Lane            one worker's way to the device: its staging tiles and its stream
//
// A lane hands out a tile, the caller fills it, the lane sends it. On a GPU a tile is pinned memory
// and send() starts an asynchronous copy. On the host a tile is part of the segment itself, and
// send() does nothing.
//
//     free ──1──> handed out ──2──> being copied ──3──> free      (the tile of a GPU's lane)
//
//   1  tile() or raw_tile(), after waiting for a free tile    2  send() or send_converted()
//   3  the device, when the copy is done; drain() waits for all. A tile that was handed out and not
//      sent is handed out again by the next tile().
//
// read_ahead() takes a free tile too, and the device copies into it; read_back() frees it.
//
// Every function throws Error kDeviceFailed: a DriverError where the driver failed. Thread safety:
// a Device is for many threads, a Lane for one at a time. Lifetime: a device outlives its segments
// and lanes; a segment outlives the lanes that used it, or their next drain().
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
  std::string id;    // argument of --device: "cuda:0", "cpu"
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-6f4ed8fb-...", as in nvidia-smi; "CPU-" and the boot id
  std::string pci;   // "0000:3b:00.0"; empty for the host
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // for a GPU only from Device::info()
};

// An allocation failed for lack of device memory. The holder may evict and try again.
class OutOfDeviceMemory : public Error {
 public:
  // `free` is what could be had, which may be less than the driver reports.
  OutOfDeviceMemory(std::string_view place, std::uint64_t needed, std::uint64_t free);
  // There is no room for a context: its size is not known, and any room may be enough.
  explicit OutOfDeviceMemory(std::string_view place);

  std::uint64_t needed() const { return needed_; }  // bytes; 0: for a context
  std::uint64_t free() const { return free_; }      // bytes

 private:
  std::uint64_t needed_ = 0;
  std::uint64_t free_ = 0;
};

// A call of the driver failed, and not for lack of memory. After some of these errors each later
// call of the process fails: a process that can be replaced should end.
class DriverError : public Error {
 public:
  using Error::Error;
};

// Segment sizes are multiples of this on every device, bytes: a huge page of the host, and a
// multiple of every supported GPU's granularity. A constant, because the holder opens no device.
inline constexpr std::uint64_t kSegmentGranularity = 2 << 20;

class DeviceSegment {
 public:
  DeviceSegment() = default;
  DeviceSegment(const DeviceSegment&) = delete;
  DeviceSegment& operator=(const DeviceSegment&) = delete;
  virtual ~DeviceSegment() = default;

  virtual std::uint64_t bytes() const = 0;  // a multiple of kSegmentGranularity

  // Ends writing: unmaps the segment here and returns the descriptor that keeps its memory. Host
  // memory is sealed (F_SEAL_WRITE), so nobody can change it. Call once, after the lanes have
  // drained.
  virtual UniqueFd publish() = 0;
};

// Counts of a conversion: finite values that became infinite, and NaNs.
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
  virtual ~Lane() = default;  // drains; ignores errors

  // Returns a tile for the bytes of [offset, offset + length) of the segment. `length` is at most
  // the lane's tile size. Waits for a free tile. Valid until send().
  virtual std::span<std::byte> tile(DeviceSegment& segment, std::uint64_t offset,
                                    std::size_t length) = 0;

  // Sends the last tile handed out.
  virtual void send() = 0;

  // As tile() and send(), for bytes that the device converts: `count` elements of `from`, a
  // TypeKind::kFloat, in `raw_bytes` bytes, become elements of `to` (F32, F16 or BF16) at `offset`
  // of the segment. Only if Device::converts(). Adds to `counts`, at the latest in drain();
  // `counts` must live until then.
  virtual std::span<std::byte> raw_tile(DeviceSegment& segment, std::uint64_t offset,
                                        std::size_t raw_bytes) = 0;
  virtual void send_converted(DType from, DType to, std::uint64_t count,
                              ConversionCounts& counts) = 0;

  // Starts to read `length` bytes of the segment (at most one tile) as they are when all sent tiles
  // have arrived. At most two reads are under way at a time.
  virtual void read_ahead(DeviceSegment& segment, std::uint64_t offset, std::size_t length) = 0;

  // The bytes of the oldest read_ahead(), after waiting for them. Valid until the next read_back().
  virtual std::span<const std::byte> read_back() = 0;

  // Waits until all sent tiles have arrived. Throws the error of any of them. Forgets reads and the
  // tile that was handed out.
  virtual void drain() = 0;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual DeviceInfo info() const = 0;

  // Whether lanes can convert. Otherwise the host does, and why_host_converts() says why; it is
  // empty where nothing else would be faster.
  virtual bool converts() const = 0;
  virtual std::string why_host_converts() const { return ""; }

  // The processors near the device, on which workers should run (processors.h); empty: any.
  virtual std::span<const int> processors() const { return {}; }

  // The number of workers when TransferOptions names none.
  virtual unsigned default_workers() const = 0;

  // Allocates `bytes`, a multiple of kSegmentGranularity. Throws also OutOfDeviceMemory. The host
  // overcommits: check info() first.
  virtual std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) = 0;

  // A lane with three tiles of `tile_bytes` each.
  virtual std::unique_ptr<Lane> lane(std::size_t tile_bytes) = 0;
};

// A published segment, mapped into this process for reading.
class MappedSegment {
 public:
  MappedSegment() = default;
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  // Calls unmap(). If that has to be put off, the segment stays mapped until the process ends.
  virtual ~MappedSegment() = default;

  // Waits for all work of this process on the device, which may use the memory, then unmaps. Puts
  // it off and returns false while a stream captures a graph. Once it has returned true, the
  // address is invalid.
  virtual bool unmap() noexcept = 0;

  // The first byte: a host address or a CUdeviceptr.
  virtual std::uint64_t address() const = 0;
};

// All usable devices, the host last. Sets `why_no_cuda`, if given, to one line when the CUDA driver
// fails.
std::vector<DeviceInfo> list_devices(std::string* why_no_cuda = nullptr);

// Bytes that a load leaves free unless it is told otherwise: on a GPU, for the contexts of the
// processes that use what is loaded. The driver reports more than it gives, too.
std::uint64_t default_keep_free(std::string_view device_id);

// Finds the device for --device: "cuda:N", a UUID ("GPU-...") or an unambiguous prefix of one, or
// "cpu". Throws Error kUsage for a malformed or ambiguous name, kDeviceFailed for an absent device.
DeviceInfo find_device(const std::string& name);

// Opens a device. For a GPU, retains its primary context while the Device lives.
std::unique_ptr<Device> open_device(const DeviceInfo& info);

// Maps a published segment of `bytes` bytes on the device of `info`. The caller may close `fd`
// afterwards.
std::unique_ptr<MappedSegment> map_segment(const DeviceInfo& info, int fd, std::uint64_t bytes);

// The back ends. Those for CUDA throw kDeviceFailed, with the reason, without a driver or when stfs
// was built without the CUDA Toolkit.
DeviceInfo cpu_info();
std::unique_ptr<Device> open_cpu();
std::unique_ptr<MappedSegment> map_cpu_segment(int fd, std::uint64_t bytes);

std::vector<DeviceInfo> cuda_infos();
std::unique_ptr<Device> open_cuda(const DeviceInfo& info);
std::unique_ptr<MappedSegment> map_cuda_segment(const DeviceInfo& info, int fd,
                                                std::uint64_t bytes);

// Lines of "subject: finding" about the CUDA back end, for `stfs-gpu doctor`.
std::vector<std::string> cuda_findings();

}  // namespace stfs::gpu
