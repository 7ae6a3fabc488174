#include "tools/gpu/device/driver.h"

#include "core/base/error.h"
#include "tools/gpu/device/device.h"

#include <dlfcn.h>

#include <cstdlib>

namespace stfs::gpu {
namespace {

// Makes a string of the macro's expansion, not of its name.
#define STFS_TEXT_OF(text) #text
#define STFS_TEXT(name) STFS_TEXT_OF(name)

CudaDriver load_driver() {
  CudaDriver driver;
  const char* chosen = std::getenv("STFS_GPU_DRIVER");
  driver.library = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";

  void* library = dlopen(driver.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorCode::kDeviceFailed, "cuda",
                std::string("there is no NVIDIA driver: ") +
                    (reason != nullptr ? reason : driver.library.c_str()) +
                    " (the device cpu needs none)");
  }
#define STFS_LOOK_UP(name)                                                                         \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, STFS_TEXT(name)));          \
  if (driver.name == nullptr) {                                                                    \
    throw Error(                                                                                   \
        ErrorCode::kDeviceFailed, "cuda",                                                          \
        driver.library + ": no function " STFS_TEXT(name) ": not a driver of CUDA 11.4 or later"); \
  }
  STFS_CUDA_FUNCTIONS(STFS_LOOK_UP)
#undef STFS_LOOK_UP

  driver.check(driver.cuInit(0), "cuInit");
  driver.check(driver.cuDriverGetVersion(&driver.version), "cuDriverGetVersion");
  return driver;
}

}  // namespace

void CudaDriver::check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* description = nullptr;
  std::string message(what);
  message += ": ";
  if (cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr) {
    message += name;
  } else {
    message += "error " + std::to_string(static_cast<int>(result));
  }
  if (cuGetErrorString(result, &description) == CUDA_SUCCESS && description != nullptr) {
    message += ": ";
    message += description;
  }
  throw DriverError(ErrorCode::kDeviceFailed, "cuda", message);
}

const CudaDriver& cuda_driver() {
  static const CudaDriver driver = load_driver();
  return driver;
}

}  // namespace stfs::gpu
