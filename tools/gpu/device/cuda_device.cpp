// GPUs as devices, through the driver's virtual memory API: a segment is an allocation of
// cuMemCreate, shared by a file descriptor.
//
// Each driver resource has an owner that frees it in its destructor. Destructors ignore errors.
#include "tools/gpu/device/convert_element.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/driver.h"
#include "tools/gpu/device/kernels.h"
#include "tools/gpu/device/processors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::gpu {
namespace {

[[noreturn]] void fail(std::string_view place, const std::string& message) {
  throw Error(ErrorCode::kDeviceFailed, place, message);
}

// --- owners of driver resources

// Retains the device's primary context, which the CUDA runtime and every framework use: addresses
// are valid for them too.
class PrimaryContext {
 public:
  // Throws also OutOfDeviceMemory.
  PrimaryContext(const CudaDriver& cuda, const std::string& device_id, CUdevice device)
      : cuda_(cuda), device_(device) {
    const CUresult result = cuda_.cuDevicePrimaryCtxRetain(&context_, device_);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfDeviceMemory(device_id);
    cuda_.check(result, "cuDevicePrimaryCtxRetain");
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ~PrimaryContext() { cuda_.cuDevicePrimaryCtxRelease(device_); }

  CUcontext get() const { return context_; }

 private:
  const CudaDriver& cuda_;
  CUdevice device_;
  CUcontext context_ = nullptr;
};

// Makes a context current for this thread during this scope, then restores the previous one.
class Current {
 public:
  Current(const CudaDriver& cuda, CUcontext context) : cuda_(cuda) {
    cuda_.check(cuda_.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    is_pushed_ = true;
  }
  // For destructors: tries twice, because they must wait for the stream before they free memory.
  Current(const CudaDriver& cuda, CUcontext context, std::nothrow_t) noexcept
      : cuda_(cuda), is_pushed_(cuda.cuCtxPushCurrent(context) == CUDA_SUCCESS) {
    if (!is_pushed_) is_pushed_ = cuda.cuCtxPushCurrent(context) == CUDA_SUCCESS;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CUcontext popped = nullptr;
    if (is_pushed_) cuda_.cuCtxPopCurrent(&popped);
  }

 private:
  const CudaDriver& cuda_;
  bool is_pushed_ = false;
};

// Owns the argument of `Destroy`: a stream, an event, a module, memory.
template <class T, auto Destroy>
class Owned {
 public:
  Owned() = default;
  Owned(const CudaDriver& cuda, T value) : cuda_(&cuda), value_(value) {}
  Owned(Owned&& other) noexcept
      : cuda_(std::exchange(other.cuda_, nullptr)), value_(std::exchange(other.value_, T{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(cuda_, other.cuda_);
    std::swap(value_, other.value_);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (cuda_ != nullptr) (cuda_->*Destroy)(value_);
  }

  T get() const { return value_; }
  explicit operator bool() const { return cuda_ != nullptr; }

 private:
  const CudaDriver* cuda_ = nullptr;
  T value_{};
};

using Stream = Owned<CUstream, &CudaDriver::cuStreamDestroy>;
using Event = Owned<CUevent, &CudaDriver::cuEventDestroy>;
using Module = Owned<CUmodule, &CudaDriver::cuModuleUnload>;
using DeviceBuffer = Owned<CUdeviceptr, &CudaDriver::cuMemFree>;
using PinnedBuffer = Owned<void*, &CudaDriver::cuMemFreeHost>;
using Allocation = Owned<CUmemGenericAllocationHandle, &CudaDriver::cuMemRelease>;

Stream make_stream(const CudaDriver& cuda) {
  CUstream stream = nullptr;
  cuda.check(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return {cuda, stream};
}

Event make_event(const CudaDriver& cuda) {
  CUevent event = nullptr;
  // Whoever waits for it sleeps: the other workers need the processors.
  cuda.check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
             "cuEventCreate");
  return {cuda, event};
}

// Waits for the stream, so that its memory can be freed. cuStreamSynchronize may return an earlier
// error without waiting: the second call waits, or fails because the context is dead and runs
// nothing. Returns the first result.
CUresult wait_for(const CudaDriver& cuda, CUstream stream) noexcept {
  const CUresult result = cuda.cuStreamSynchronize(stream);
  if (result != CUDA_SUCCESS) cuda.cuStreamSynchronize(stream);
  return result;
}

PinnedBuffer make_pinned(const CudaDriver& cuda, std::size_t bytes) {
  void* address = nullptr;
  cuda.check(cuda.cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE),
             std::to_string(bytes) + " bytes of pinned memory: cuMemHostAlloc");
  return {cuda, address};
}

// As check(), but throws OutOfDeviceMemory for CUDA_ERROR_OUT_OF_MEMORY.
void check_room(const CudaDriver& cuda, CUresult result, std::string_view what,
                const std::string& device_id, std::uint64_t needed) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    std::size_t free = 0;
    std::size_t total = 0;
    cuda.check(cuda.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    throw OutOfDeviceMemory(device_id, needed, free);
  }
  cuda.check(result, what);
}

// An allocation, mapped into the device's address space.
class MappedRange {
 public:
  // Throws OutOfDeviceMemory, or an error with the name of the call. `read_only`: asks for read
  // access first, which some drivers refuse for device memory; then for read and write.
  MappedRange(const CudaDriver& cuda, const std::string& device_id, CUdevice device,
              CUmemGenericAllocationHandle allocation, std::uint64_t bytes, bool read_only)
      : cuda_(cuda), bytes_(bytes) {
    check_room(cuda_, cuda_.cuMemAddressReserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve",
               device_id, bytes);
    try {
      check_room(cuda_, cuda_.cuMemMap(address_, bytes_, 0, allocation, 0), "cuMemMap", device_id,
                 bytes);
      is_mapped_ = true;
      allow(device_id, device, read_only);
    } catch (...) {
      undo();
      throw;
    }
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange() { undo(); }

  // Unmaps and reports errors, which the destructor ignores.
  void unmap() {
    is_mapped_ = false;
    cuda_.check(cuda_.cuMemUnmap(address_, bytes_), "cuMemUnmap");
  }

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void allow(const std::string& device_id, CUdevice device, bool read_only) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (read_only) {
      const CUresult result = cuda_.cuMemSetAccess(address_, bytes_, &access, 1);
      const bool is_unknown =
          result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED;
      if (!is_unknown) return check_room(cuda_, result, "cuMemSetAccess", device_id, bytes_);
    }
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check_room(cuda_, cuda_.cuMemSetAccess(address_, bytes_, &access, 1), "cuMemSetAccess",
               device_id, bytes_);
  }

  void undo() noexcept {
    if (std::exchange(is_mapped_, false)) cuda_.cuMemUnmap(address_, bytes_);
    cuda_.cuMemAddressFree(address_, bytes_);
  }

  const CudaDriver& cuda_;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
  bool is_mapped_ = false;
};

// --- devices

int attribute(const CudaDriver& cuda, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  cuda.check(cuda.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

std::string hexadecimal(const CUuuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

DeviceInfo describe(const CudaDriver& cuda, int ordinal, CUdevice device) {
  DeviceInfo info;
  info.id = "cuda:" + std::to_string(ordinal);

  std::array<char, 256> text{};
  cuda.check(cuda.cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, device),
             "cuDeviceGetName");
  info.name = text.data();

  CUuuid uuid{};
  cuda.check(cuda.cuDeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid");
  // A MIG instance has its own UUID; only the name tells it from a whole GPU.
  info.uuid = (info.name.find(" MIG ") == std::string::npos ? "GPU-" : "MIG-") + hexadecimal(uuid);

  text.fill('\0');
  cuda.check(cuda.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, device),
             "cuDeviceGetPCIBusId");
  info.pci = text.data();
  for (char& c : info.pci) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }

  std::size_t total = 0;
  cuda.check(cuda.cuDeviceTotalMem(&total, device), "cuDeviceTotalMem");
  info.total_bytes = total;
  return info;
}

int device_count(const CudaDriver& cuda) {
  int count = 0;
  cuda.check(cuda.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

CUdevice device_at(const CudaDriver& cuda, int ordinal) {
  CUdevice device = 0;
  cuda.check(cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

// Finds a device by UUID: ordinals depend on CUDA_VISIBLE_DEVICES.
CUdevice device_of(const CudaDriver& cuda, const DeviceInfo& info) {
  const int count = device_count(cuda);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const CUdevice device = device_at(cuda, ordinal);
    if (describe(cuda, ordinal, device).uuid == info.uuid) return device;
  }
  fail(info.id, "there is no device " + info.uuid + " among the " + std::to_string(count) +
                    " that this process sees (CUDA_VISIBLE_DEVICES)");
}

CUmemAllocationProp allocation_properties(const CudaDriver& cuda, CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  // Allow RDMA by network cards, if the device supports it.
  properties.allocFlags.gpuDirectRDMACapable =
      attribute(cuda, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  return properties;
}

class CudaSegment : public DeviceSegment {
 public:
  CudaSegment(const CudaDriver& cuda, CUcontext context, const std::string& device_id,
              CUdevice device, Allocation allocation, std::uint64_t bytes)
      : cuda_(cuda),
        context_(context),
        allocation_(std::move(allocation)),
        bytes_(bytes),
        range_(std::in_place, cuda, device_id, device, allocation_.get(), bytes, false) {}
  ~CudaSegment() override {
    const Current current(cuda_, context_, std::nothrow);
    range_.reset();
    allocation_ = {};
  }

  std::uint64_t bytes() const override { return bytes_; }

  // The address of [offset, offset + length).
  CUdeviceptr at(std::uint64_t offset, std::uint64_t length) const {
    if (!range_) fail("cuda", "segment: already published");
    if (offset > bytes_ || length > bytes_ - offset) fail("cuda", "segment: range out of bounds");
    return range_->address() + offset;
  }

  UniqueFd publish() override {
    if (!range_) fail("cuda", "segment: already published");
    const Current current(cuda_, context_);
    int fd = -1;
    cuda_.check(cuda_.cuMemExportToShareableHandle(&fd, allocation_.get(),
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "cuMemExportToShareableHandle");
    UniqueFd descriptor(fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
      throw_errno(ErrorCode::kDeviceFailed, "cuda", "exported descriptor", errno);
    range_->unmap();
    range_.reset();
    allocation_ = {};  // the descriptor keeps the memory
    return descriptor;
  }

 private:
  const CudaDriver& cuda_;
  CUcontext context_;
  Allocation allocation_;
  std::uint64_t bytes_;
  std::optional<MappedRange> range_;
};

// Results of cuModuleLoadData for a fat binary without code for the device: too old a GPU, or a
// driver that is older than the compiler.
bool lacks_code(CUresult result) {
  return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE ||
         result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND ||
         result == CUDA_ERROR_JIT_COMPILATION_DISABLED;
}

// The conversion kernel and its lookup tables on the device.
class Converter {
 public:
  // `module` is of embedded_kernels().
  Converter(const CudaDriver& cuda, Module module) : cuda_(cuda), module_(std::move(module)) {
    cuda_.check(cuda_.cuModuleGetFunction(&kernel_, module_.get(), kConvertKernel),
                "cuModuleGetFunction");
  }

  CUfunction kernel() const { return kernel_; }

  // The device's table for a dtype of at most 16 bits. The caller makes the context current. A new
  // table is complete on return, so every stream may read it.
  CUdeviceptr table(const std::string& device_id, DType from, CUstream stream) {
    const std::scoped_lock lock(mutex_);
    if (const auto known = tables_.find(from); known != tables_.end()) return known->second.get();

    const std::vector<float> values = table_of(from);
    const std::size_t bytes = values.size() * sizeof(float);
    CUdeviceptr address = 0;
    check_room(cuda_, cuda_.cuMemAlloc(&address, bytes), "cuMemAlloc", device_id, bytes);
    DeviceBuffer table(cuda_, address);
    const CUresult sent = cuda_.cuMemcpyHtoDAsync(address, values.data(), bytes, stream);
    const CUresult arrived = wait_for(cuda_, stream);
    cuda_.check(sent, "cuMemcpyHtoDAsync");
    cuda_.check(arrived, "cuStreamSynchronize");
    tables_.emplace(from, std::move(table));
    return address;
  }

 private:
  // The value of every code of the dtype, in order, as binary32.
  static std::vector<float> table_of(DType from) {
    const unsigned bits = type_info(from).bits();
    const std::size_t codes = std::size_t{1} << bits;
    std::vector<std::byte> in((codes * bits + 7) / 8 + sizeof(std::uint32_t));
    for (std::size_t code = 0; code < codes; ++code) {
      // Little-endian, packed from the lowest bit up.
      for (unsigned bit = 0; bit < bits; ++bit) {
        const std::size_t at = code * bits + bit;
        if ((code >> bit & 1) != 0) in[at / 8] |= std::byte{1} << at % 8;
      }
    }
    std::vector<float> values(codes);
    type_info(from).to_f32(in.data(), codes, values.data());
    return values;
  }

  const CudaDriver& cuda_;
  Module module_;
  CUfunction kernel_ = nullptr;
  std::mutex mutex_;  // tables_
  std::map<DType, DeviceBuffer> tables_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const CudaDriver& cuda, const DeviceInfo& info);
  ~CudaDevice() override {
    const Current current(cuda_, context_.get(), std::nothrow);
    converter_.reset();
  }

  DeviceInfo info() const override;
  bool converts() const override { return converter_.has_value(); }
  std::string why_host_converts() const override { return why_host_converts_; }
  // Half of the processors: they only read. More than eight do not fill the bus faster.
  unsigned default_workers() const override {
    return std::clamp(std::thread::hardware_concurrency() / 2, 1U, 8U);
  }
  std::span<const int> processors() const override { return processors_; }
  std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) override;
  std::unique_ptr<Lane> lane(std::size_t tile_bytes) override;

  const CudaDriver& cuda() const { return cuda_; }
  const std::string& id() const { return info_.id; }
  CUcontext context() const { return context_.get(); }

  // Only if converts().
  Converter& converter() { return *converter_; }

 private:
  void load_kernels();

  const CudaDriver& cuda_;
  CUdevice device_;
  DeviceInfo info_;
  PrimaryContext context_;
  CUmemAllocationProp properties_;
  std::optional<Converter> converter_;
  std::string why_host_converts_;
  const std::vector<int> processors_;
};

class CudaLane : public Lane {
 public:
  CudaLane(CudaDevice& device, std::size_t tile_bytes)
      : device_(device), cuda_(device.cuda()), tile_bytes_(tile_bytes) {
    stream_ = make_stream(cuda_);
    all_ = make_event(cuda_);
    for (Tile& tile : tiles_) {
      tile.buffer = make_pinned(cuda_, tile_bytes_);
      tile.copied = make_event(cuda_);
    }
  }

  ~CudaLane() override {
    const Current current(cuda_, device_.context(), std::nothrow);
    settle();
    counters_ = {};
    raw_ = {};
    for (Tile& tile : tiles_) tile = {};
    all_ = {};
    stream_ = {};
  }

  std::span<std::byte> tile(DeviceSegment& segment, std::uint64_t offset,
                            std::size_t length) override {
    return hand_out(segment, offset, length, length);
  }

  std::span<std::byte> raw_tile(DeviceSegment& segment, std::uint64_t offset,
                                std::size_t raw_bytes) override {
    return hand_out(segment, offset, raw_bytes, 0);
  }

  void send() override {
    submit([&](Tile& tile) {
      cuda_.check(cuda_.cuMemcpyHtoDAsync(segment_->at(offset_, length_), tile.buffer.get(),
                                          length_, stream_.get()),
                  "cuMemcpyHtoDAsync");
    });
  }

  void send_converted(DType from, DType to, std::uint64_t count, ConversionCounts& counts) override;

  void read_ahead(DeviceSegment& segment, std::uint64_t offset, std::size_t length) override {
    if (reads_.size() + 1 >= tiles_.size()) fail(device_.id(), "lane: too many reads");
    const std::span<std::byte> buffer = hand_out(segment, offset, length, length);
    const std::size_t tile = next_;
    submit([&](Tile&) {
      cuda_.check(cuda_.cuMemcpyDtoHAsync(buffer.data(), segment_->at(offset, length), length,
                                          stream_.get()),
                  "cuMemcpyDtoHAsync");
    });
    reads_.push_back({tile, length});
  }

  std::span<const std::byte> read_back() override {
    if (reads_.empty()) fail(device_.id(), "lane: nothing is read");
    const Read read = reads_.front();
    reads_.pop_front();
    Tile& tile = tiles_[read.tile];
    await(tile.copied);
    tile.is_being_copied = false;
    return {static_cast<const std::byte*>(tile.buffer.get()), read.length};
  }

  void drain() override {
    wait_for_all();
    const Current current(cuda_, device_.context());
    guarded([&] { collect(); });
    reads_.clear();
    segment_ = nullptr;
  }

 private:
  struct Tile {
    PinnedBuffer buffer;
    Event copied;
    bool is_being_copied = false;  // a copy may still use it
  };
  struct Read {
    std::size_t tile;
    std::size_t length;
  };

  // Pairs of counters on the device. When all are taken, collect() frees them.
  static constexpr std::size_t kSlots = 256;
  using SlotValues = std::array<std::array<unsigned long long, 2>, kSlots>;

  static CudaSegment& of(DeviceSegment& segment) { return dynamic_cast<CudaSegment&>(segment); }

  std::span<std::byte> hand_out(DeviceSegment& segment, std::uint64_t offset, std::size_t bytes,
                                std::size_t length) {
    if (bytes > tile_bytes_) fail(device_.id(), "tile: larger than the lane's tiles");
    CudaSegment& target = of(segment);
    target.at(offset, length);
    Tile& tile = tiles_[next_];
    if (tile.is_being_copied) await(tile.copied);
    tile.is_being_copied = false;
    segment_ = &target;
    offset_ = offset;
    length_ = bytes;
    return {static_cast<std::byte*>(tile.buffer.get()), bytes};
  }

  // Queues `work` on the stream, for the tile that was handed out.
  template <class Work>
  void submit(const Work& work) {
    if (segment_ == nullptr) fail(device_.id(), "lane: no tile was handed out");
    const Current current(cuda_, device_.context());
    Tile& tile = tiles_[next_];
    guarded([&] {
      work(tile);
      cuda_.check(cuda_.cuEventRecord(tile.copied.get(), stream_.get()), "cuEventRecord");
    });
    tile.is_being_copied = true;
    segment_ = nullptr;
    next_ = (next_ + 1) % tiles_.size();
  }

  void await(const Event& event) {
    const Current current(cuda_, device_.context());
    guarded([&] { cuda_.check(cuda_.cuEventSynchronize(event.get()), "cuEventSynchronize"); });
  }

  void wait_for_all() {
    const Current current(cuda_, device_.context());
    guarded([&] { cuda_.check(cuda_.cuEventRecord(all_.get(), stream_.get()), "cuEventRecord"); });
    await(all_);
    for (Tile& tile : tiles_) tile.is_being_copied = false;
  }

  // Runs `work`. If it throws, waits for the stream first: the caller may free the memory.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      settle();
      throw;
    }
  }

  // Waits for the stream and ignores errors.
  void settle() noexcept {
    wait_for(cuda_, stream_.get());
    for (Tile& tile : tiles_) tile.is_being_copied = false;
    slots_.clear();
    reads_.clear();
  }

  CUdeviceptr slot_for(ConversionCounts& counts);
  void collect();

  CudaDevice& device_;
  const CudaDriver& cuda_;
  std::size_t tile_bytes_;
  Stream stream_;
  Event all_;  // of the stream, when a caller waits for it
  std::array<Tile, 3> tiles_;
  std::size_t next_ = 0;
  std::deque<Read> reads_;

  // The tile that is handed out: its target.
  CudaSegment* segment_ = nullptr;
  std::uint64_t offset_ = 0;
  std::size_t length_ = 0;

  DeviceBuffer raw_;       // one tile of raw bytes; the stream runs copies and kernels in order
  DeviceBuffer counters_;  // SlotValues on the device
  std::vector<ConversionCounts*> slots_;  // by slot
};

void CudaLane::send_converted(DType from, DType to, std::uint64_t count, ConversionCounts& counts) {
  const std::uint64_t bits = type_info(from).bits();
  if (count > length_ * 8 / bits) fail(device_.id(), "lane: more elements than the tile holds");
  submit([&](Tile& tile) {
    ConvertTask task{};
    task.count = count;
    task.from_bits = static_cast<std::uint32_t>(bits);
    task.to = to == DType::kF32 ? Narrow::kF32 : to == DType::kF16 ? Narrow::kF16 : Narrow::kBF16;
    const CUdeviceptr out = segment_->at(offset_, count * type_info(to).block_bytes);
    if (count == 0) return;

    Converter& converter = device_.converter();
    const CUdeviceptr table = bits <= 16 ? converter.table(device_.id(), from, stream_.get()) : 0;
    if (!raw_) {
      CUdeviceptr address = 0;
      check_room(cuda_, cuda_.cuMemAlloc(&address, tile_bytes_), "cuMemAlloc", device_.id(),
                 tile_bytes_);
      raw_ = {cuda_, address};
    }
    const CUdeviceptr slot = slot_for(counts);
    const CUdeviceptr in = raw_.get();
    static_assert(sizeof(CUdeviceptr) == sizeof(void*));
    std::memcpy(&task.in, &in, sizeof in);
    std::memcpy(&task.out, &out, sizeof out);
    std::memcpy(&task.table, &table, sizeof table);
    std::memcpy(&task.counts, &slot, sizeof slot);

    cuda_.check(cuda_.cuMemcpyHtoDAsync(in, tile.buffer.get(), length_, stream_.get()),
                "cuMemcpyHtoDAsync");
    constexpr std::uint64_t kMostBlocks = 4096;  // each thread loops over further elements
    const std::uint64_t blocks = (count + kConvertThreads - 1) / kConvertThreads;
    void* parameters[] = {&task};
    cuda_.check(cuda_.cuLaunchKernel(converter.kernel(),
                                     static_cast<unsigned>(std::min(blocks, kMostBlocks)), 1, 1,
                                     kConvertThreads, 1, 1, 0, stream_.get(), parameters, nullptr),
                "cuLaunchKernel");
  });
}

// The device's counters for `counts` until the next collect().
CUdeviceptr CudaLane::slot_for(ConversionCounts& counts) {
  if (!counters_) {
    CUdeviceptr address = 0;
    check_room(cuda_, cuda_.cuMemAlloc(&address, sizeof(SlotValues)), "cuMemAlloc", device_.id(),
               sizeof(SlotValues));
    counters_ = {cuda_, address};
  }
  auto known = std::ranges::find(slots_, &counts);
  if (known == slots_.end()) {
    if (slots_.size() == kSlots) {
      wait_for_all();
      collect();
    }
    if (slots_.empty()) {
      cuda_.check(cuda_.cuMemsetD8Async(counters_.get(), 0, sizeof(SlotValues), stream_.get()),
                  "cuMemsetD8Async");
    }
    slots_.push_back(&counts);
    known = slots_.end() - 1;
  }
  const auto slot = static_cast<std::size_t>(known - slots_.begin());
  return counters_.get() + slot * sizeof(SlotValues::value_type);
}

// Adds the device's counters to their ConversionCounts. The stream must be idle.
void CudaLane::collect() {
  if (slots_.empty()) return;
  SlotValues values{};
  cuda_.check(cuda_.cuMemcpyDtoH(values.data(), counters_.get(),
                                 slots_.size() * sizeof(SlotValues::value_type)),
              "cuMemcpyDtoH");
  for (std::size_t i = 0; i < slots_.size(); ++i)
    *slots_[i] += ConversionCounts{.out_of_range = values[i][0], .nan = values[i][1]};
  slots_.clear();
}

CudaDevice::CudaDevice(const CudaDriver& cuda, const DeviceInfo& info)
    : cuda_(cuda),
      device_(device_of(cuda, info)),
      info_(info),
      context_(cuda, info.id, device_),
      properties_(allocation_properties(cuda, device_)),
      processors_(local_processors(info.pci)) {
  if (attribute(cuda_, device_, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0 ||
      attribute(cuda_, device_, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) ==
          0)
    fail(info.id, "its driver cannot share memory by a file descriptor");
  std::size_t granularity = 0;
  cuda_.check(cuda_.cuMemGetAllocationGranularity(&granularity, &properties_,
                                                  CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "cuMemGetAllocationGranularity");
  if (granularity == 0 || kSegmentGranularity % granularity != 0)
    fail(info.id, "its driver allocates in units of " + std::to_string(granularity) +
                      " bytes, stfs in units of " + std::to_string(kSegmentGranularity));
  load_kernels();
}

void CudaDevice::load_kernels() {
  if (embedded_kernels().empty()) {
    why_host_converts_ = "stfs was built without nvcc";
    return;
  }
  const Current current(cuda_, context_.get());
  CUmodule module = nullptr;
  const CUresult result = cuda_.cuModuleLoadData(&module, embedded_kernels().data());
  if (lacks_code(result)) {
    why_host_converts_ =
        "stfs has no machine code for " + info_.name + ", or its driver refuses it";
    return;
  }
  cuda_.check(result, "cuModuleLoadData");
  converter_.emplace(cuda_, Module(cuda_, module));
}

DeviceInfo CudaDevice::info() const {
  const Current current(cuda_, context_.get());
  std::size_t free = 0;
  std::size_t total = 0;
  cuda_.check(cuda_.cuMemGetInfo(&free, &total), "cuMemGetInfo");
  DeviceInfo info = info_;
  info.free_bytes = free;
  info.total_bytes = total;
  return info;
}

std::unique_ptr<DeviceSegment> CudaDevice::allocate(std::uint64_t bytes) {
  if (bytes == 0 || bytes % kSegmentGranularity != 0)
    fail(id(), "segment: its size is no multiple of " + std::to_string(kSegmentGranularity));
  const Current current(cuda_, context_.get());
  CUmemGenericAllocationHandle handle = 0;
  check_room(cuda_, cuda_.cuMemCreate(&handle, bytes, &properties_, 0), "cuMemCreate", id(), bytes);
  return std::make_unique<CudaSegment>(cuda_, context_.get(), id(), device_,
                                       Allocation(cuda_, handle), bytes);
}

std::unique_ptr<Lane> CudaDevice::lane(std::size_t tile_bytes) {
  const Current current(cuda_, context_.get());
  return std::make_unique<CudaLane>(*this, tile_bytes);
}

// Lets this thread make calls during this scope that would spoil a capture of a graph, on whichever
// stream, if they belonged to it.
class BesidesCaptures {
 public:
  explicit BesidesCaptures(const CudaDriver& cuda) noexcept : cuda_(cuda) {
    is_exchanged_ = cuda_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  BesidesCaptures(const BesidesCaptures&) = delete;
  BesidesCaptures& operator=(const BesidesCaptures&) = delete;
  ~BesidesCaptures() {
    if (is_exchanged_) cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
  }

 private:
  const CudaDriver& cuda_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_exchanged_ = false;
};

// Waits for all work in the current context. Returns false, without waiting, while a stream
// captures a graph: that wait would spoil the capture. The default stream knows of captures on
// streams that it waits for; of those on other streams only the wait itself can tell.
bool settle(const CudaDriver& cuda) noexcept {
  const auto is_of_capture = [](CUresult result) {
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  };
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = cuda.cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
  if (is_of_capture(result) || status != CU_STREAM_CAPTURE_STATUS_NONE) return false;
  result = cuda.cuCtxSynchronize();
  // As wait_for(): the error may be an earlier one. A dead context runs nothing.
  if (result != CUDA_SUCCESS && !is_of_capture(result)) result = cuda.cuCtxSynchronize();
  return !is_of_capture(result);
}

class MappedCudaSegment : public MappedSegment {
 public:
  MappedCudaSegment(const CudaDriver& cuda, const DeviceInfo& info, int fd, std::uint64_t bytes)
      : cuda_(cuda),
        device_(device_of(cuda, info)),
        context_(std::make_unique<PrimaryContext>(cuda, info.id, device_)) {
    const Current current(cuda_, context_->get());
    const BesidesCaptures besides(cuda_);
    CUmemGenericAllocationHandle handle = 0;
    // The parameter holds the descriptor itself, not its address.
    void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    cuda_.check(cuda_.cuMemImportFromShareableHandle(&handle, shareable,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "cuMemImportFromShareableHandle");
    // Release the handle on return: the mapping keeps the memory.
    const Allocation allocation(cuda_, handle);
    range_ = std::make_unique<MappedRange>(cuda_, info.id, device_, handle, bytes, true);
  }
  ~MappedCudaSegment() override {
    if (MappedCudaSegment::unmap()) return;
    static_cast<void>(range_.release());
    static_cast<void>(context_.release());
  }

  bool unmap() noexcept override {
    if (range_ == nullptr) return true;
    const Current current(cuda_, context_->get(), std::nothrow);
    const BesidesCaptures besides(cuda_);
    if (!settle(cuda_)) return false;
    range_.reset();
    return true;
  }

  std::uint64_t address() const override { return range_->address(); }

 private:
  const CudaDriver& cuda_;
  CUdevice device_;
  std::unique_ptr<PrimaryContext> context_;
  std::unique_ptr<MappedRange> range_;
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string mode_finding(int compute_mode) {
  if (compute_mode == CU_COMPUTEMODE_PROHIBITED) return ", but its compute mode prohibits use";
  if (compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS) {
    return ", but its compute mode is for one process at a time: a load fails while a program uses "
           "it, and no program can use what is loaded during a load (nvidia-smi -c DEFAULT)";
  }
  return "";
}

std::string finding_of(const CudaDriver& cuda, int ordinal) {
  const CUdevice device = device_at(cuda, ordinal);
  const DeviceInfo info = describe(cuda, ordinal, device);
  const auto has = [&](CUdevice_attribute which) { return attribute(cuda, device, which) != 0; };
  const auto yes_or_no = [](bool is) { return is ? std::string("yes") : std::string("no"); };
  return info.id + ": " + info.name + ", " + info.uuid + ", compute " +
         std::to_string(attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) +
         "." +
         std::to_string(attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)) +
         ", copy engines " +
         std::to_string(attribute(cuda, device, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)) +
         ", memory by descriptor " +
         yes_or_no(has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
                   has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) +
         ", for network cards " +
         yes_or_no(has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) +
         mode_finding(attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
}

}  // namespace

std::vector<DeviceInfo> cuda_infos() {
  const CudaDriver& cuda = cuda_driver();
  std::vector<DeviceInfo> infos;
  const int count = device_count(cuda);
  infos.reserve(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal)
    infos.push_back(describe(cuda, ordinal, device_at(cuda, ordinal)));
  return infos;
}

std::unique_ptr<Device> open_cuda(const DeviceInfo& info) {
  return std::make_unique<CudaDevice>(cuda_driver(), info);
}

std::unique_ptr<MappedSegment> map_cuda_segment(const DeviceInfo& info, int fd,
                                                std::uint64_t bytes) {
  return std::make_unique<MappedCudaSegment>(cuda_driver(), info, fd, bytes);
}

std::vector<std::string> cuda_findings() {
  std::vector<std::string> findings;
  findings.emplace_back(embedded_kernels().empty()
                            ? "kernels: none in this build (no nvcc): --as converts on the host"
                            : "kernels: in this build: --as converts on the device, unless a load "
                              "warns that there is no machine code for it");
  for (const char* node : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    findings.push_back(std::string(node) + ": " +
                       (access(node, R_OK | W_OK) == 0 ? "may be used" : errno_text(errno)));
  }
  try {
    const CudaDriver& cuda = cuda_driver();
    findings.push_back("driver: " + cuda.library + ", CUDA " + version_text(cuda.version));
    const int count = device_count(cuda);
    for (int ordinal = 0; ordinal < count; ++ordinal) findings.push_back(finding_of(cuda, ordinal));
  } catch (const Error& error) {
    findings.push_back("driver: " + error.message());
  }
  return findings;
}

}  // namespace stfs::gpu
