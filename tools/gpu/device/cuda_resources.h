// The devices of the CUDA driver, and classes that own the driver's resources. Each class frees one
// resource in its destructor, which ignores errors.
//
// Thread safety: one thread at a time uses an owner; the functions may be called from any thread.
// Lifetime: a context must outlive the resources that were created in it.
#pragma once

#include "tools/gpu/device/device.h"
#include "tools/gpu/device/driver.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace stfs::gpu {

// Retains the device's primary context. The CUDA runtime and every framework use the same context,
// so addresses are also valid for them.
class PrimaryContext {
 public:
  // Throws OutOfDeviceMemory if the device has no memory for a context, and DriverError.
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

// Makes a context current for this thread during a scope, then restores the previous one.
class Current {
 public:
  Current(const CudaDriver& cuda, CUcontext context) : cuda_(cuda) {
    cuda_.check(cuda_.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    is_pushed_ = true;
  }
  // For destructors. Tries twice, because a destructor must wait for the stream before it frees
  // memory.
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

// Owns the argument of `Destroy`: a stream, an event, a module or memory.
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

Stream make_stream(const CudaDriver& cuda);
Event make_event(const CudaDriver& cuda);
PinnedBuffer make_pinned(const CudaDriver& cuda, std::size_t bytes);

// Waits for the stream, so that the memory that it uses can be freed. cuStreamSynchronize() may
// return an earlier error without waiting. The second call then waits, or fails because the context
// is dead and runs no work. Returns the first result.
CUresult wait_for(const CudaDriver& cuda, CUstream stream) noexcept;

// Like CudaDriver::check(), but throws OutOfDeviceMemory for CUDA_ERROR_OUT_OF_MEMORY.
void check_room(const CudaDriver& cuda, CUresult result, std::string_view what,
                const std::string& device_id, std::uint64_t needed);

// An allocation that is mapped into the device's address space.
class MappedRange {
 public:
  // Throws OutOfDeviceMemory, or DriverError with the name of the call. If `read_only`, first asks
  // for read access, which some drivers refuse for device memory, and then for read and write
  // access.
  MappedRange(const CudaDriver& cuda, const std::string& device_id, CUdevice device,
              CUmemGenericAllocationHandle allocation, std::uint64_t bytes, bool read_only);
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange() { undo(); }

  // Unmaps the range and throws DriverError on failure, which the destructor ignores.
  void unmap() {
    is_mapped_ = false;
    cuda_.check(cuda_.cuMemUnmap(address_, bytes_), "cuMemUnmap");
  }

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void allow(const std::string& device_id, CUdevice device, bool read_only);

  void undo() noexcept {
    if (std::exchange(is_mapped_, false)) cuda_.cuMemUnmap(address_, bytes_);
    cuda_.cuMemAddressFree(address_, bytes_);
  }

  const CudaDriver& cuda_;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
  bool is_mapped_ = false;
};

int attribute(const CudaDriver& cuda, CUdevice device, CUdevice_attribute which);
int device_count(const CudaDriver& cuda);
CUdevice device_at(const CudaDriver& cuda, int ordinal);
DeviceInfo describe(const CudaDriver& cuda, int ordinal, CUdevice device);

// Finds a device by its UUID, because ordinals depend on CUDA_VISIBLE_DEVICES.
CUdevice device_of(const CudaDriver& cuda, const DeviceInfo& info);

}  // namespace stfs::gpu
