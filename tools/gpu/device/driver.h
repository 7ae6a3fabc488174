// The CUDA driver, found at run time: one table of the functions that stfs calls, with the types
// that cuda.h gives them. The binary links with no library of CUDA, so it runs, and says what is
// missing, where there is none.
//
// It is libcuda.so.1, or the library that $STFS_GPU_DRIVER names. It is never unloaded: a driver
// keeps threads of its own.
//
// Thread safety: all of it. The table is immutable.
#pragma once

#include <cuda.h>

#include <string>
#include <string_view>

namespace stfs::gpu {

// cuda.h renames some of these to the version that it describes (cuMemGetInfo is cuMemGetInfo_v2):
// members and symbols have the names that it renames them to.
#define STFS_CUDA_FUNCTIONS(F)      \
  F(cuInit)                         \
  F(cuDriverGetVersion)             \
  F(cuGetErrorName)                 \
  F(cuGetErrorString)               \
  F(cuDeviceGetCount)               \
  F(cuDeviceGet)                    \
  F(cuDeviceGetName)                \
  F(cuDeviceGetUuid)                \
  F(cuDeviceGetPCIBusId)            \
  F(cuDeviceGetAttribute)           \
  F(cuDeviceTotalMem)               \
  F(cuDevicePrimaryCtxRetain)       \
  F(cuDevicePrimaryCtxRelease)      \
  F(cuCtxPushCurrent)               \
  F(cuCtxPopCurrent)                \
  F(cuMemGetInfo)                   \
  F(cuMemGetAllocationGranularity)  \
  F(cuMemCreate)                    \
  F(cuMemRelease)                   \
  F(cuMemAddressReserve)            \
  F(cuMemAddressFree)               \
  F(cuMemMap)                       \
  F(cuMemUnmap)                     \
  F(cuMemSetAccess)                 \
  F(cuMemExportToShareableHandle)   \
  F(cuMemImportFromShareableHandle) \
  F(cuMemAlloc)                     \
  F(cuMemFree)                      \
  F(cuMemHostAlloc)                 \
  F(cuMemFreeHost)                  \
  F(cuMemcpyHtoD)                   \
  F(cuMemcpyDtoH)                   \
  F(cuMemcpyHtoDAsync)              \
  F(cuMemcpyDtoHAsync)              \
  F(cuMemsetD8Async)                \
  F(cuStreamCreate)                 \
  F(cuStreamDestroy)                \
  F(cuStreamSynchronize)            \
  F(cuEventCreate)                  \
  F(cuEventDestroy)                 \
  F(cuEventRecord)                  \
  F(cuEventSynchronize)             \
  F(cuModuleLoadData)               \
  F(cuModuleUnload)                 \
  F(cuModuleGetFunction)            \
  F(cuLaunchKernel)

struct CudaDriver {
  std::string library;  // as it was asked for
  int version = 0;      // of CUDA: 13000 is 13.0
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares what it is given
#define STFS_MEMBER(name) decltype(&::name) name = nullptr;
  STFS_CUDA_FUNCTIONS(STFS_MEMBER)
#undef STFS_MEMBER

  // Throws Error kDeviceFailed, "what: CUDA_ERROR_...: its description", unless it succeeded.
  void check(CUresult result, std::string_view what) const;
};

// The driver, loaded and initialised when it is first asked for. Throws Error kDeviceFailed, each
// time, when there is none, when it lacks a function, and when it finds no device.
const CudaDriver& cuda_driver();

}  // namespace stfs::gpu
