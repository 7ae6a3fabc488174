// The fake driver's memory: device memory with a descriptor, other memory, copies.
#include "tests/gpu/fake_machine.h"
#include "tests/gpu/fake_streams.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

using namespace stfs::gpu::test::fake;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::size_t kStaged = 64 << 10;  // largest "synchronous" copy that may complete later

bool is_whole(std::size_t size) { return size != 0 && size % kGranularity == 0; }

}  // namespace

extern "C" {

// --- memory with a descriptor

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  BEGIN_IN_CONTEXT(cuMemGetInfo);
  *total = m.settings.memory;
  *free = m.settings.memory - std::min(m.settings.memory, m.used(m.hardware_of(context.ordinal)));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  BEGIN(cuMemGetAllocationGranularity);
  *granularity = m.settings.granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  BEGIN(cuMemCreate);
  if (!is_whole(size) || flags != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(m, properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  auto allocation = m.allocate(properties->location.id, size);
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  BEGIN_GIVING_BACK(cuMemRelease);
  if (m.handles.erase(handle) == 0) {
    m.misuse("cuMemRelease: no such handle");
    return CUDA_ERROR_INVALID_VALUE;
  }
  return answer;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
  BEGIN(cuMemAddressReserve);
  if (!is_whole(size) || alignment > kGranularity || hint != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Reservation reservation{std::make_unique<Addresses>(size), size};
  *address = reservation.addresses->begin();
  m.reservations[*address] = std::move(reservation);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  BEGIN_GIVING_BACK(cuMemAddressFree);
  const auto found = m.reservations.find(address);
  if (found == m.reservations.end() || found->second.size != size) {
    m.misuse("cuMemAddressFree: no such reservation");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mapped = m.mappings.lower_bound(address);
  if (mapped != m.mappings.end() && mapped->first < address + size)
    m.misuse("cuMemAddressFree: it is still mapped");
  m.reservations.erase(found);
  return answer;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  BEGIN(cuMemMap);
  const auto allocation = m.handles.find(handle);
  if (!is_whole(size) || address % kGranularity != 0 || offset != 0 || flags != 0 ||
      allocation == m.handles.end() || size != allocation->second->size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto after = m.reservations.upper_bound(address);
  if (after == m.reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [begin_of, reservation] = *std::prev(after);
  if (address - begin_of > reservation.size || size > reservation.size - (address - begin_of))
    return CUDA_ERROR_INVALID_VALUE;
  const auto next = m.mappings.lower_bound(address);
  const bool meets_next = next != m.mappings.end() && next->first < address + size;
  const bool meets_previous = next != m.mappings.begin() &&
                              std::prev(next)->first + std::prev(next)->second->size > address;
  if (meets_next || meets_previous) {
    m.misuse("cuMemMap: there is a mapping already");
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto range = std::make_shared<DeviceRange>();
  range->address = address;
  range->size = size;
  range->allocation = allocation->second;
  m.mappings[address] = std::move(range);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size) {
  BEGIN_GIVING_BACK(cuMemUnmap);
  if (disturbs_capture(m)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = m.mappings.find(address);
  if (found == m.mappings.end() || found->second->size != size) {
    m.misuse("cuMemUnmap: it is not mapped");
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.must_be_idle(*found->second, "cuMemUnmap");
  m.mappings.erase(found);
  return answer;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
                        std::size_t count) {
  BEGIN(cuMemSetAccess);
  const auto found = m.mappings.find(address);
  if (found == m.mappings.end() || found->second->size != size || count != 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(m, access->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ && !m.settings.knows_read_only)
    return CUDA_ERROR_INVALID_VALUE;
  // Access from another device would need peer access.
  if (m.hardware_of(access->location.id) != found->second->allocation->hardware)
    return CUDA_ERROR_INVALID_DEVICE;
  found->second->access[access->location.id] = access->flags;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  BEGIN(cuMemExportToShareableHandle);
  const auto found = m.handles.find(handle);
  if (found == m.handles.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(found->second->fd, F_DUPFD, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(shareable, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  BEGIN(cuMemImportFromShareableHandle);
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  std::error_code error;
  const std::string target =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).string();
  struct stat status {};
  if (error || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &status) != 0 ||
      !target.starts_with("/memfd:" + std::string(kMemoryName) + ".")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int hardware = std::stoi(target.substr(target.rfind('.') + 1));
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  auto allocation =
      std::make_shared<Allocation>(own, static_cast<std::size_t>(status.st_size), hardware);
  if (allocation->shadow == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(allocation);
  return CUDA_SUCCESS;
}

// --- other memory

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t size) {
  BEGIN_IN_CONTEXT(cuMemAlloc);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  auto memory = std::make_shared<LinearMemory>();
  memory->allocation = m.allocate(context.ordinal, size);
  if (memory->allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->addresses = std::make_unique<Addresses>(size);
  memory->address = memory->addresses->begin();
  memory->size = size;
  *address = memory->address;
  m.linear[*address] = std::move(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  BEGIN_GIVING_BACK(cuMemFree);
  const auto found = m.linear.find(address);
  if (found == m.linear.end()) {
    m.misuse("cuMemFree: it was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.must_be_idle(*found->second, "cuMemFree");
  m.linear.erase(found);
  return answer;
}

CUresult cuMemHostAlloc(void** address, std::size_t size, unsigned int) {
  BEGIN_IN_CONTEXT(cuMemHostAlloc);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, size) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, kGarbage, size);
  auto buffer = std::make_shared<Pinned>();
  buffer->address = reinterpret_cast<std::uint64_t>(memory);
  buffer->size = size;
  m.pinned[buffer->address] = std::move(buffer);
  m.pinned_bytes += size;
  *address = memory;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* address) {
  BEGIN_GIVING_BACK(cuMemFreeHost);
  const auto found = m.pinned.find(reinterpret_cast<std::uint64_t>(address));
  if (found == m.pinned.end()) {
    m.misuse("cuMemFreeHost: it was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.must_be_idle(*found->second, "cuMemFreeHost");
  m.pinned_bytes -= found->second->size;
  m.pinned.erase(found);
  return answer;
}

// --- copies

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t size) {
  BEGIN_IN_CONTEXT(cuMemcpyHtoD);
  const auto range = m.range_at(to, size, context.ordinal, true);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const target = host_bytes(*range, to);
  if (size > kStaged) {
    std::memcpy(target, from, size);
    return CUDA_SUCCESS;
  }
  // Small copies are staged: the caller may reuse the source, but the bytes may arrive later.
  const auto* const bytes = static_cast<const std::byte*>(from);
  stream_of(m, context, nullptr)
      ->give({[target, staged = std::vector(bytes, bytes + size)] {
                std::memcpy(target, staged.data(), staged.size());
              },
              {range}});
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size) {
  BEGIN_IN_CONTEXT(cuMemcpyDtoH);
  const auto range = m.range_at(from, size, context.ordinal, false);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto stream = stream_of(m, context, nullptr)) stream->demand(lock, stream->given());
  if (m.fault != CUDA_SUCCESS) return m.fault;
  std::memcpy(to, host_bytes(*range, from), size);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t size, CUstream handle) {
  BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync);
  const auto stream = stream_of(m, context, handle);
  const auto range = m.range_at(to, size, context.ordinal, true);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const target = host_bytes(*range, to);
  if (const auto pinned = m.pinned_at(from, size)) {
    stream->give({[=] { std::memcpy(target, from, size); }, {range, pinned}});
    return CUDA_SUCCESS;
  }
  const auto* const bytes = static_cast<const std::byte*>(from);
  stream->give({[target, staged = std::vector(bytes, bytes + size)] {
                  std::memcpy(target, staged.data(), staged.size());
                },
                {range}});
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size, CUstream handle) {
  BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync);
  const auto stream = stream_of(m, context, handle);
  const auto range = m.range_at(from, size, context.ordinal, false);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::byte* const source = host_bytes(*range, from);
  const auto pinned = m.pinned_at(to, size);
  Operation copy{[=] { std::memcpy(to, source, size); }, {range}, true};
  if (pinned != nullptr) copy.touches.push_back(pinned);
  stream->give(std::move(copy));
  if (pinned == nullptr) stream->demand(lock, stream->given());  // pageable memory: wait
  return m.fault;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t size, CUstream handle) {
  BEGIN_IN_CONTEXT(cuMemsetD8Async);
  const auto stream = stream_of(m, context, handle);
  const auto range = m.range_at(to, size, context.ordinal, true);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const target = host_bytes(*range, to);
  stream->give({[=] { std::memset(target, value, size); }, {range}});
  return CUDA_SUCCESS;
}

}  // extern "C"
