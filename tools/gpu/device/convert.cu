// Converts elements for --as on the device. nvcc compiles this file to a fat binary for
// kernels.cpp.
#include "tools/gpu/device/convert_element.h"

extern "C" __global__ void __launch_bounds__(stfs::gpu::kConvertThreads)
    stfs_convert(const stfs::gpu::ConvertTask task) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  unsigned out_of_range = 0;
  unsigned nan = 0;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < task.count; i += stride) {
    const stfs::gpu::ValueKind kind = stfs::gpu::convert_element(task, i);
    out_of_range += kind == stfs::gpu::ValueKind::kOutOfRange ? 1 : 0;
    nan += kind == stfs::gpu::ValueKind::kNan ? 1 : 0;
  }

  // Add up per block, so that each block does at most two atomic additions in device memory.
  __shared__ unsigned block_counts[2];
  if (threadIdx.x < 2) block_counts[threadIdx.x] = 0;
  __syncthreads();
  if (out_of_range != 0) atomicAdd(&block_counts[0], out_of_range);
  if (nan != 0) atomicAdd(&block_counts[1], nan);
  __syncthreads();
  if (threadIdx.x < 2 && block_counts[threadIdx.x] != 0) {
    atomicAdd(&task.counts[threadIdx.x],
              static_cast<unsigned long long>(block_counts[threadIdx.x]));
  }
}
