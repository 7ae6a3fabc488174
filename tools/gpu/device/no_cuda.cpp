// Replaces the CUDA back end when stfs is built without the CUDA Toolkit.
#include "core/base/error.h"
#include "tools/gpu/device/device.h"

namespace stfs::gpu {
namespace {

constexpr const char* kWhy = "stfs was built without the CUDA Toolkit (the device cpu needs none)";

[[noreturn]] void refuse() { throw Error(ErrorCode::kDeviceFailed, "cuda", kWhy); }

}  // namespace

std::vector<DeviceInfo> cuda_infos() { refuse(); }
std::unique_ptr<Device> open_cuda(const DeviceInfo&) { refuse(); }
std::unique_ptr<MappedSegment> map_cuda_segment(const DeviceInfo&, int, std::uint64_t) { refuse(); }
std::vector<std::string> cuda_findings() { return {std::string("cuda: ") + kWhy}; }

}  // namespace stfs::gpu
