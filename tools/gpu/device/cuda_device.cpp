// GPUs as devices, through the driver's virtual memory API. A segment is an allocation of
// cuMemCreate() that is shared through a file descriptor.
#include "tools/gpu/device/convert_element.h"
#include "tools/gpu/device/cuda_resources.h"
#include "tools/gpu/device/kernels.h"
#include "tools/gpu/device/processors.h"

#include <fcntl.h>

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

CUmemAllocationProp allocation_properties(const CudaDriver& cuda, CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  // Allow RDMA by network cards if the device supports it.
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

  // Returns the address of the bytes [offset, offset + length).
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

// Returns true if cuModuleLoadData() failed because the fat binary has no code for the device: the
// GPU is too old, or the driver is older than the compiler.
bool lacks_code(CUresult result) {
  return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE ||
         result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND ||
         result == CUDA_ERROR_JIT_COMPILATION_DISABLED;
}

// The conversion kernel and its lookup tables on the device.
class Converter {
 public:
  // `module` was loaded from embedded_kernels().
  Converter(const CudaDriver& cuda, Module module) : cuda_(cuda), module_(std::move(module)) {
    cuda_.check(cuda_.cuModuleGetFunction(&kernel_, module_.get(), kConvertKernel),
                "cuModuleGetFunction");
  }

  CUfunction kernel() const { return kernel_; }

  // Returns the device's table for a type of at most 16 bits. The caller makes the context current.
  // A new table has been copied when this returns, so every stream may read it.
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
  // Returns the values of all codes of the type, in order, as binary32.
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
  std::mutex mutex_;  // guards tables_
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
  // Half of the processors, because they only read. More than eight workers do not fill the bus
  // faster.
  unsigned default_workers() const override {
    return std::clamp(std::thread::hardware_concurrency() / 2, 1U, 8U);
  }
  std::span<const int> processors() const override { return processors_; }
  std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) override;
  std::unique_ptr<Lane> lane(std::size_t tile_bytes) override;

  const CudaDriver& cuda() const { return cuda_; }
  const std::string& id() const { return info_.id; }
  CUcontext context() const { return context_.get(); }

  // Call this only if converts().
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
    bool is_being_copied = false;  // a copy in flight may still use it
  };
  struct Read {
    std::size_t tile;
    std::size_t length;
  };

  // Pairs of counters on the device. When all are in use, collect() frees them.
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

  // Runs `work`. If it throws, waits for the stream first, because the caller may free the memory.
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
  Event all_;  // recorded when a caller waits for the whole stream
  std::array<Tile, 3> tiles_;
  std::size_t next_ = 0;
  std::deque<Read> reads_;

  // The target of the tile that is handed out, and the bytes in the tile.
  CudaSegment* segment_ = nullptr;
  std::uint64_t offset_ = 0;
  std::size_t length_ = 0;

  DeviceBuffer raw_;       // one tile of raw bytes; the stream runs copies and kernels in order
  DeviceBuffer counters_;  // SlotValues on the device
  std::vector<ConversionCounts*> slots_;  // the owner of each slot
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
    constexpr std::uint64_t kMaxBlocks = 4096;  // each thread loops over further elements
    const std::uint64_t blocks = (count + kConvertThreads - 1) / kConvertThreads;
    void* parameters[] = {&task};
    cuda_.check(cuda_.cuLaunchKernel(converter.kernel(),
                                     static_cast<unsigned>(std::min(blocks, kMaxBlocks)), 1, 1,
                                     kConvertThreads, 1, 1, 0, stream_.get(), parameters, nullptr),
                "cuLaunchKernel");
  });
}

// Returns the device's counters for `counts`, which are valid until the next collect().
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

// Adds the device's counters to the ConversionCounts that own them. The stream must be idle.
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

}  // namespace

std::unique_ptr<Device> open_cuda(const DeviceInfo& info) {
  return std::make_unique<CudaDevice>(cuda_driver(), info);
}

}  // namespace stfs::gpu
