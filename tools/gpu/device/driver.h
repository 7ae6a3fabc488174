// The CUDA driver, loaded with dlopen(3): a table of the functions that stfs calls, with the types
// of cuda.h. The binary is not linked with a CUDA library, so it also runs without a driver, and
// reports the missing part.
//
// The library is $STFS_GPU_DRIVER, or else libcuda.so.1. It is never unloaded, because a driver has
// threads of its own.
//
// Thread safety: the table is immutable, and all functions may be called from any thread.
#pragma once

#include <cuda.h>

#include <string>
#include <string_view>

namespace stfs::gpu {

// cuda.h renames some functions to versioned symbols (cuMemGetInfo to cuMemGetInfo_v2), so members
// and symbols have the versioned names.
#define STFS_CUDA_FUNCTIONS(F)         \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuGetErrorString)                  \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetName)                   \
  F(cuDeviceGetUuid)                   \
  F(cuDeviceGetPCIBusId)               \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceTotalMem)                  \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuDevicePrimaryCtxRelease)         \
  F(cuCtxPushCurrent)                  \
  F(cuCtxPopCurrent)                   \
  F(cuCtxSynchronize)                  \
  F(cuMemGetInfo)                      \
  F(cuMemGetAllocationGranularity)     \
  F(cuMemCreate)                       \
  F(cuMemRelease)                      \
  F(cuMemAddressReserve)               \
  F(cuMemAddressFree)                  \
  F(cuMemMap)                          \
  F(cuMemUnmap)                        \
  F(cuMemSetAccess)                    \
  F(cuMemExportToShareableHandle)      \
  F(cuMemImportFromShareableHandle)    \
  F(cuMemAlloc)                        \
  F(cuMemFree)                         \
  F(cuMemHostAlloc)                    \
  F(cuMemFreeHost)                     \
  F(cuMemcpyHtoD)                      \
  F(cuMemcpyDtoH)                      \
  F(cuMemcpyHtoDAsync)                 \
  F(cuMemcpyDtoHAsync)                 \
  F(cuMemsetD8Async)                   \
  F(cuStreamCreate)                    \
  F(cuStreamDestroy)                   \
  F(cuStreamSynchronize)               \
  F(cuStreamIsCapturing)               \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuEventCreate)                     \
  F(cuEventDestroy)                    \
  F(cuEventRecord)                     \
  F(cuEventSynchronize)                \
  F(cuModuleLoadData)                  \
  F(cuModuleUnload)                    \
  F(cuModuleGetFunction)               \
  F(cuLaunchKernel)

struct CudaDriver {
  std::string library;  // the name that was given to dlopen(3)
  int version = 0;      // the CUDA version: 13000 means 13.0
// NOLINTNEXTLINE(bugprone-macro-parentheses): the macro declares `name`
#define STFS_MEMBER(name) decltype(&::name) name = nullptr;
  STFS_CUDA_FUNCTIONS(STFS_MEMBER)
#undef STFS_MEMBER

  // Throws DriverError "what: CUDA_ERROR_...: description" unless `result` is CUDA_SUCCESS.
  void check(CUresult result, std::string_view what) const;
};

// Returns the driver, which the first call loads and initialises. Throws Error kDeviceFailed, on
// each call, if the driver is missing or lacks a function, or if cuInit() fails.
const CudaDriver& cuda_driver();

}  // namespace stfs::gpu
