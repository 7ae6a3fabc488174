// Lists the GPUs, and describes them for `stfs-gpu doctor`.
#include "tools/gpu/device/cuda_resources.h"
#include "tools/gpu/device/kernels.h"

#include <unistd.h>

#include <cerrno>

namespace stfs::gpu {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string mode_finding(int compute_mode) {
  if (compute_mode == CU_COMPUTEMODE_PROHIBITED) return ", but its compute mode prohibits use";
  if (compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS) {
    return ", but its compute mode is for one process at a time: a load fails while a program uses "
           "it, and no program can use loaded tensors during a load (nvidia-smi -c DEFAULT)";
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
