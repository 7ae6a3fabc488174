#include "tools/gpu/device/device.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <string>

namespace stfs::gpu {

OutOfDeviceMemory::OutOfDeviceMemory(std::string_view place, std::uint64_t needed,
                                     std::uint64_t free)
    : Error(ErrorCode::kDeviceFailed, place,
            "out of memory: needed " + human_bytes(needed) + ", free " + human_bytes(free) +
                " (stfs-gpu ls shows who holds it)"),
      needed_(needed),
      free_(free) {}

OutOfDeviceMemory::OutOfDeviceMemory(std::string_view place)
    : Error(ErrorCode::kDeviceFailed, place,
            "out of memory: no room for a context (stfs-gpu ls shows who holds it)") {}

std::uint64_t default_keep_free(std::string_view device_id) {
  return device_id == "cpu" ? 0 : std::uint64_t{1} << 30;
}

std::vector<DeviceInfo> list_devices(std::string* why_no_cuda) {
  std::vector<DeviceInfo> devices;
  try {
    devices = cuda_infos();
  } catch (const Error& error) {
    if (why_no_cuda != nullptr) *why_no_cuda = error.what();
  }
  devices.push_back(cpu_info());
  return devices;
}

DeviceInfo find_device(const std::string& name) {
  if (name == "cpu") return cpu_info();
  // A MIG instance, which is a part of a GPU, has its own UUID.
  const bool is_uuid = (name.starts_with("GPU-") || name.starts_with("MIG-")) && name.size() > 4;
  const bool is_number = name.starts_with("cuda:") && name.size() > 5 && name.size() < 10 &&
                         name.find_first_not_of("0123456789", 5) == std::string::npos;
  if (name == cpu_info().uuid) return cpu_info();
  if (!is_uuid && !is_number) {
    throw Error(ErrorCode::kUsage, "",
                "device " + in_quotes(name) +
                    ": name cuda:N, the UUID of a GPU, or cpu (stfs-gpu devices lists them)");
  }
  std::vector<DeviceInfo> found;
  for (DeviceInfo& info : cuda_infos()) {
    if (is_uuid ? info.uuid.starts_with(name) : info.id == name) found.push_back(std::move(info));
  }
  if (found.empty()) {
    throw Error(ErrorCode::kDeviceFailed, "",
                "device " + in_quotes(name) + ": no such device (stfs-gpu devices lists them)");
  }
  if (found.size() > 1) {
    throw Error(ErrorCode::kUsage, "",
                "device " + in_quotes(name) + ": several UUIDs begin with it: give more of it");
  }
  return std::move(found.front());
}

std::unique_ptr<Device> open_device(const DeviceInfo& info) {
  return info.id == "cpu" ? open_cpu() : open_cuda(info);
}

std::unique_ptr<MappedSegment> map_segment(const DeviceInfo& info, int fd, std::uint64_t bytes) {
  return info.id == "cpu" ? map_cpu_segment(fd, bytes) : map_cuda_segment(info, fd, bytes);
}

}  // namespace stfs::gpu
