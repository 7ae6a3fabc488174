// The memory that tensors are copied into: memory of a GPU, or host memory.
//
//   Device          one GPU, or the host; reports its size and free memory
//   DeviceSegment   an allocation that a file descriptor keeps alive and other processes can map
//   Lane            one worker's way to the device: its staging tiles and its stream
//
// A lane hands out a tile, the caller fills it, and the lane sends it. On a GPU a tile is pinned
// host memory, and send() starts an asynchronous copy. On the host a tile is a part of the segment
// itself, and send() does nothing.
//
//     free ──1──> handed out ──2──> being copied ──3──> free      (the tile of a GPU's lane)
//
//   1  The worker calls tile() or raw_tile(), which wait for a free tile.
//   2  The worker calls send() or send_converted().
//   3  The device has finished the copy; drain() waits for all copies.
//
// A tile that was handed out but not sent is handed out again by the next tile(). read_ahead() also
// takes a free tile, into which the device copies; read_back() frees it.
//
// On failure, every function throws Error kDeviceFailed, or DriverError if the driver failed.
//
// Thread safety: several threads may use a Device at the same time; one thread at a time uses a
// Lane. Lifetime: a device must outlive its segments and lanes; a segment must outlive the lanes
// that used it, or their next drain().
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
  std::string id;    // the argument of --device: "cuda:0", "cpu"
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // as in nvidia-smi: "GPU-6f4ed8fb-..."; for the host "CPU-" and the boot id
  std::string pci;   // the PCI address, "0000:3b:00.0"; "" for the host
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;  // for a GPU set only by Device::info()
};

// An allocation failed because the device lacks memory. The holder may evict tensors and retry.
class OutOfDeviceMemory : public Error {
 public:
  // `needed` and `free` are in bytes. `free` is the memory that could be allocated, which may be
  // less than the driver reports.
  OutOfDeviceMemory(std::string_view place, std::uint64_t needed, std::uint64_t free);
  // The device has no memory for a context. The size of a context is not known, so any amount of
  // freed memory may be enough.
  explicit OutOfDeviceMemory(std::string_view place);

  std::uint64_t needed() const { return needed_; }  // bytes; 0: for a context
  std::uint64_t free() const { return free_; }      // bytes

 private:
  std::uint64_t needed_ = 0;
  std::uint64_t free_ = 0;
};

// A call of the driver failed for another reason than a lack of memory. After some of these errors
// every later call of the process fails, so a process that can be replaced should end.
class DriverError : public Error {
 public:
  using Error::Error;
};

// The unit of segment sizes on every device, in bytes: a huge page of the host, and a multiple of
// every supported GPU's granularity. A constant, because the holder opens no device.
inline constexpr std::uint64_t kSegmentGranularity = 2 << 20;

class DeviceSegment {
 public:
  DeviceSegment() = default;
  DeviceSegment(const DeviceSegment&) = delete;
  DeviceSegment& operator=(const DeviceSegment&) = delete;
  virtual ~DeviceSegment() = default;

  virtual std::uint64_t bytes() const = 0;  // a multiple of kSegmentGranularity

  // Ends the writing: unmaps the segment in this process and returns the descriptor that keeps its
  // memory. Host memory is sealed (F_SEAL_WRITE), so that no process can change it. Call this once,
  // after the lanes have drained.
  virtual UniqueFd publish() = 0;
};

// How many values a conversion changed to infinity although they were finite, and how many NaNs it
// met.
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

  // Returns a tile for the bytes [offset, offset + length) of the segment, after waiting for a free
  // one. `length` is at most the lane's tile size. The tile is valid until send().
  virtual std::span<std::byte> tile(DeviceSegment& segment, std::uint64_t offset,
                                    std::size_t length) = 0;

  // Sends the last tile that was handed out.
  virtual void send() = 0;

  // Like tile() and send(), but the device converts the bytes: `count` elements of type `from`,
  // which is a TypeKind::kFloat, in `raw_bytes` bytes become elements of type `to` (F32, F16 or
  // BF16) at `offset` of the segment. Call these only if Device::converts(). The counts are added
  // to `counts` in drain() at the latest, so `counts` must live until then.
  virtual std::span<std::byte> raw_tile(DeviceSegment& segment, std::uint64_t offset,
                                        std::size_t raw_bytes) = 0;
  virtual void send_converted(DType from, DType to, std::uint64_t count,
                              ConversionCounts& counts) = 0;

  // Starts to read `length` bytes of the segment, at most one tile. The read sees all tiles that
  // were sent before. At most two reads may be in flight.
  virtual void read_ahead(DeviceSegment& segment, std::uint64_t offset, std::size_t length) = 0;

  // Waits for the oldest read_ahead() and returns its bytes. They are valid until the next
  // read_back().
  virtual std::span<const std::byte> read_back() = 0;

  // Waits until all sent tiles have arrived, and throws the error of any of them. Drops the reads
  // and the tile that was handed out.
  virtual void drain() = 0;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual DeviceInfo info() const = 0;

  // Returns true if lanes can convert. Otherwise the host converts, and why_host_converts() returns
  // the reason, or "" if no other way would be faster.
  virtual bool converts() const = 0;
  virtual std::string why_host_converts() const { return ""; }

  // The processors near the device, on which workers should run (processors.h). Empty: any.
  virtual std::span<const int> processors() const { return {}; }

  // Returns the number of workers that is used if TransferOptions gives none.
  virtual unsigned default_workers() const = 0;

  // Allocates `bytes`, which must be a multiple of kSegmentGranularity. Throws OutOfDeviceMemory if
  // the device lacks memory. The host overcommits, so check info() first.
  virtual std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) = 0;

  // Creates a lane with three tiles of `tile_bytes` bytes each.
  virtual std::unique_ptr<Lane> lane(std::size_t tile_bytes) = 0;
};

// A published segment that is mapped into this process for reading.
class MappedSegment {
 public:
  MappedSegment() = default;
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  // Calls unmap(). If unmap() returns false, the segment stays mapped until the process ends.
  virtual ~MappedSegment() = default;

  // Waits for all work of this process on the device, because it may use the memory, then unmaps
  // the segment and returns true; the address is then invalid. Returns false without unmapping
  // while a stream captures a graph.
  virtual bool unmap() noexcept = 0;

  // Returns the address of the first byte: a host address or a CUdeviceptr.
  virtual std::uint64_t address() const = 0;
};

// Returns all usable devices, the host last. If the CUDA driver fails, sets `why_no_cuda`, unless
// it is null, to one line with the reason.
std::vector<DeviceInfo> list_devices(std::string* why_no_cuda = nullptr);

// Returns the number of bytes that a load leaves free by default. On a GPU, the contexts of the
// processes that use the tensors need them, and the driver reports more memory than it can
// allocate.
std::uint64_t default_keep_free(std::string_view device_id);

// Finds the device for --device: "cuda:N", a UUID ("GPU-...") or an unambiguous prefix of one, or
// "cpu". Throws Error kUsage if the name is malformed or ambiguous, and kDeviceFailed if there is
// no such device.
DeviceInfo find_device(const std::string& name);

// Opens a device. A GPU's primary context is retained while the Device lives.
std::unique_ptr<Device> open_device(const DeviceInfo& info);

// Maps a published segment of `bytes` bytes on the device. The caller may close `fd` afterwards.
std::unique_ptr<MappedSegment> map_segment(const DeviceInfo& info, int fd, std::uint64_t bytes);

// The back ends. The functions for CUDA throw Error kDeviceFailed with the reason if there is no
// driver or stfs was built without the CUDA Toolkit.
DeviceInfo cpu_info();
std::unique_ptr<Device> open_cpu();
std::unique_ptr<MappedSegment> map_cpu_segment(int fd, std::uint64_t bytes);

std::vector<DeviceInfo> cuda_infos();
std::unique_ptr<Device> open_cuda(const DeviceInfo& info);
std::unique_ptr<MappedSegment> map_cuda_segment(const DeviceInfo& info, int fd,
                                                std::uint64_t bytes);

// Returns lines "subject: finding" about the CUDA back end, for `stfs-gpu doctor`.
std::vector<std::string> cuda_findings();

}  // namespace stfs::gpu
