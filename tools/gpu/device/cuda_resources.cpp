#include "tools/gpu/device/cuda_resources.h"

#include "core/base/text.h"

#include <array>

namespace stfs::gpu {
namespace {

// Returns "6f4ed8fb-...".
std::string uuid_text(const CUuuid& uuid) {
  std::string text = hex({uuid.bytes, sizeof uuid.bytes});
  for (const std::size_t dash : {8U, 13U, 18U, 23U}) text.insert(dash, 1, '-');
  return text;
}

}  // namespace

Stream make_stream(const CudaDriver& cuda) {
  CUstream stream = nullptr;
  cuda.check(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return {cuda, stream};
}

Event make_event(const CudaDriver& cuda) {
  CUevent event = nullptr;
  // A waiting thread sleeps, because the other workers need the processors.
  cuda.check(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
             "cuEventCreate");
  return {cuda, event};
}

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

MappedRange::MappedRange(const CudaDriver& cuda, const std::string& device_id, CUdevice device,
                         CUmemGenericAllocationHandle allocation, std::uint64_t bytes,
                         bool read_only)
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

void MappedRange::allow(const std::string& device_id, CUdevice device, bool read_only) {
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
  check_room(cuda_, cuda_.cuMemSetAccess(address_, bytes_, &access, 1), "cuMemSetAccess", device_id,
             bytes_);
}

int attribute(const CudaDriver& cuda, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  cuda.check(cuda.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
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
  // A MIG instance has its own UUID; only its name distinguishes it from a whole GPU.
  info.uuid = (info.name.find(" MIG ") == std::string::npos ? "GPU-" : "MIG-") + uuid_text(uuid);

  text.fill('\0');
  cuda.check(cuda.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, device),
             "cuDeviceGetPCIBusId");
  info.pci = lower_case(text.data());

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

CUdevice device_of(const CudaDriver& cuda, const DeviceInfo& info) {
  const int count = device_count(cuda);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const CUdevice device = device_at(cuda, ordinal);
    if (describe(cuda, ordinal, device).uuid == info.uuid) return device;
  }
  throw Error(ErrorCode::kDeviceFailed, info.id,
              "there is no device " + info.uuid + " among the " + std::to_string(count) +
                  " that this process sees (CUDA_VISIBLE_DEVICES)");
}

}  // namespace stfs::gpu
