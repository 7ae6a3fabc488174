// A CUDA driver without a GPU: the functions of tools/gpu/device/driver.h, for tests. fake_driver.h
// has its settings.
//
// It is stricter than a real driver. The host faults when it touches a device address. Asynchronous
// operations run as late as possible, or at random times; a copy from pinned memory reads the
// memory only then. New memory contains garbage. Misuse, such as freeing memory that a stream still
// uses, is recorded for the test, and kills the context as on a GPU: after a fault every call of
// the process fails, including calls that free something.
//
// Device memory is a memfd, because a descriptor must keep it and other processes must map it.
#include "tests/gpu/fake_driver.h"

#include "tests/gpu/fake_machine.h"
#include "tools/gpu/device/convert_element.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

using namespace stfs::gpu::test::fake;  // NOLINT(google-build-using-namespace)

namespace {

const Hardware& hardware_of(const Machine& m, CUdevice device) {
  return m.settings.hardware[static_cast<std::size_t>(m.hardware_of(device))];
}

// Writes the report, then waits until the test lets the process exit.
[[gnu::destructor]] void end() {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  if (const char* file = std::getenv("STFS_FAKE_CUDA_REPORT"); file != nullptr) {
    const std::string text = m.report();
    if (std::FILE* out = std::fopen(file, "ae"); out != nullptr) {
      std::fprintf(out, "process %d: pinned %zu times\n%s", static_cast<int>(getpid()),
                   m.calls["cuMemHostAlloc"], text.c_str());
      std::fclose(out);
    }
  }
  const char* gate = std::getenv("STFS_FAKE_CUDA_END");
  if (gate == nullptr || !m.has_had_context) return;
  while (access(gate, F_OK) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

extern "C" {

void stfs_fake_cuda_configure() {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  m.forget_fault(lock);
  m.settings = Settings();
  m.calls.clear();
  m.operations = 0;
  m.misuses.clear();
  m.peak_reads_back = m.reads_back;
  m.spinning_waits = 0;
}

void stfs_fake_cuda_report(char* text, std::size_t size) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  std::snprintf(text, size, "%s", m.report().c_str());
}

std::size_t stfs_fake_cuda_count(const char* what) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  const std::string name = what;
  return name == "peak reads back"  ? m.peak_reads_back
         : name == "spinning waits" ? m.spinning_waits
                                    : m.calls[plain_name(name)];
}

// --- the driver itself

CUresult cuInit(unsigned int flags) {
  BEGIN(cuInit);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (m.settings.visible_devices.empty()) return CUDA_ERROR_NO_DEVICE;
  m.is_initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  BEGIN(cuDriverGetVersion);
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  BEGIN(cuGetErrorName);
  static const std::map<CUresult, const char*> kNames = {
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"}};
  const auto known = kNames.find(error);
  *name = known == kNames.end() ? nullptr : known->second;
  return known == kNames.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  BEGIN(cuGetErrorString);
  *text = error == CUDA_ERROR_NO_DEVICE       ? "no CUDA-capable device is detected"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                              : "an error of the fake driver";
  return CUDA_SUCCESS;
}

// --- devices

CUresult cuDeviceGetCount(int* count) {
  BEGIN(cuDeviceGetCount);
  *count = static_cast<int>(m.settings.visible_devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  BEGIN(cuDeviceGet);
  if (!is_device(m, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  BEGIN(cuDeviceGetName);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "%s",
                hardware_of(m, device).name().c_str());
  return CUDA_SUCCESS;
}

// The first version does not support instances, so it returns the GPU's UUID.
#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  BEGIN(cuDeviceGetUuid);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = hardware_of(m, device).gpu_uuid();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  BEGIN(cuDeviceGetUuid_v2);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = hardware_of(m, device).uuid();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  BEGIN(cuDeviceGetPCIBusId);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                0x3b + hardware_of(m, device).gpu);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  BEGIN(cuDeviceGetAttribute);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = m.settings.compute_mode; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  BEGIN(cuDeviceTotalMem);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = m.settings.memory;
  return CUDA_SUCCESS;
}

// --- contexts

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = m.contexts[device];
  if (context.memory < 0 && m.settings.context > 0) {
    context.memory = m.take(m.hardware_of(device), m.settings.context);
    if (context.memory < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context.ordinal = device;
  ++context.retained;
  m.has_had_context = true;
  *handle = reinterpret_cast<CUcontext>(&context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  BEGIN_GIVING_BACK(cuDevicePrimaryCtxRelease);
  const auto found = m.contexts.find(device);
  if (found == m.contexts.end() || found->second.retained == 0) {
    m.misuse("cuDevicePrimaryCtxRelease: it was not retained");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Context& context = found->second;
  if (--context.retained == 0 && context.memory >= 0) close(std::exchange(context.memory, -1));
  return answer;
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  BEGIN(cuCtxPushCurrent);
  auto* const context = reinterpret_cast<Context*>(handle);
  if (context == nullptr || context->retained == 0) {
    m.misuse("cuCtxPushCurrent: the context was released");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  current_contexts().push_back(context);
  ++m.pushed;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* handle) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  const CUresult answer = begin("cuCtxPopCurrent");
  if (current_contexts().empty()) {
    m.misuse("cuCtxPopCurrent: no context is current");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *handle = reinterpret_cast<CUcontext>(current_contexts().back());
  current_contexts().pop_back();
  --m.pushed;
  return answer;
}

// --- kernels

CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  BEGIN_IN_CONTEXT(cuModuleLoadData);
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != 0xba55ed50) return CUDA_ERROR_INVALID_IMAGE;  // not a fat binary
  if (!m.settings.has_code) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const std::uint64_t number = m.next_handle++;
  m.modules.insert(number);
  *handle = as_handle<CUmodule>(number);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  BEGIN_GIVING_BACK(cuModuleUnload);
  if (m.modules.erase(reinterpret_cast<std::uint64_t>(handle)) == 0) {
    m.misuse("cuModuleUnload: no such module");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return answer;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  BEGIN_IN_CONTEXT(cuModuleGetFunction);
  if (!m.modules.contains(reinterpret_cast<std::uint64_t>(handle)))
    return CUDA_ERROR_INVALID_HANDLE;
  if (std::strcmp(name, stfs::gpu::kConvertKernel) != 0) return CUDA_ERROR_NOT_FOUND;
  *function = as_handle<CUfunction>(reinterpret_cast<std::uint64_t>(handle));
  return CUDA_SUCCESS;
}

// Runs the only kernel, stfs_convert, as a loop.
CUresult cuLaunchKernel(CUfunction, unsigned int grid_x, unsigned int, unsigned int,
                        unsigned int block_x, unsigned int, unsigned int, unsigned int,
                        CUstream handle, void** parameters, void**) {
  BEGIN_IN_CONTEXT(cuLaunchKernel);
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (grid_x == 0 || block_x != stfs::gpu::kConvertThreads) return CUDA_ERROR_INVALID_VALUE;
  stfs::gpu::ConvertTask task;
  std::memcpy(&task, parameters[0], sizeof task);

  const std::size_t in_bytes = (task.count * task.from_bits + 7) / 8;
  const std::size_t out_bytes = task.count * (task.to == stfs::gpu::Narrow::kF32 ? 4 : 2);
  std::vector<std::shared_ptr<Region>> touches;
  bool is_illegal = false;
  const auto on_host = [&](auto*& pointer, std::size_t size, bool to_write) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const auto range = m.range_at(address, size, context.ordinal, to_write);
    is_illegal = is_illegal || range == nullptr;
    if (range == nullptr) return;
    touches.push_back(range);
    pointer =
        reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(host_bytes(*range, address));
  };
  on_host(task.in, in_bytes, false);
  on_host(task.counts, 2 * sizeof(*task.counts), true);
  if (task.from_bits <= 16) on_host(task.table, sizeof(float) << task.from_bits, false);
  auto* out = static_cast<std::byte*>(task.out);
  on_host(out, out_bytes, true);
  task.out = out;
  const auto run = [task] {
    for (std::uint64_t i = 0; i < task.count; ++i) {
      const stfs::gpu::ValueKind kind = stfs::gpu::convert_element(task, i);
      if (kind == stfs::gpu::ValueKind::kOutOfRange) ++task.counts[0];
      if (kind == stfs::gpu::ValueKind::kNan) ++task.counts[1];
    }
  };
  const auto fault = [&m] {
    const std::scoped_lock in_operation(m.mutex);
    m.fault = CUDA_ERROR_ILLEGAL_ADDRESS;
  };
  stream->give({is_illegal ? std::function<void()>(fault) : std::function<void()>(run), touches});
  return CUDA_SUCCESS;
}

}  // extern "C"
