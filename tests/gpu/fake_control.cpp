#include "tests/gpu/fake_control.h"

#include "tests/gpu/fake_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>

namespace stfs::gpu::test {
namespace {

// Set before main(), and therefore before the driver is loaded.
const bool kIsChosen = setenv("STFS_GPU_DRIVER", STFS_FAKE_DRIVER, 0) == 0;

constexpr std::array kVariables{
    "STFS_FAKE_CUDA_DEVICES",     "CUDA_VISIBLE_DEVICES",     "STFS_FAKE_CUDA_MIG",
    "STFS_FAKE_CUDA_MEMORY",      "STFS_FAKE_CUDA_HIDDEN",    "STFS_FAKE_CUDA_CONTEXT",
    "STFS_FAKE_CUDA_LAG",         "STFS_FAKE_CUDA_SPACE",     "STFS_FAKE_CUDA_LATE",
    "STFS_FAKE_CUDA_FAIL",        "STFS_FAKE_CUDA_FAULT",     "STFS_FAKE_CUDA_CODE",
    "STFS_FAKE_CUDA_GRANULARITY", "STFS_FAKE_CUDA_READ_ONLY", "STFS_FAKE_CUDA_MODE"};

template <class Function>
Function* function(const char* name) {
  void* library = dlopen(std::getenv("STFS_GPU_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  void* found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) throw std::runtime_error(std::string("not the fake driver: ") + name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

bool is_fake_driver() {
  return kIsChosen && std::string(std::getenv("STFS_GPU_DRIVER")) == STFS_FAKE_DRIVER;
}

void configure_fake_driver(const std::map<std::string, std::string>& environment) {
  for (const auto& [name, value] : environment)
    if (std::ranges::find(kVariables, name) == kVariables.end()) throw std::out_of_range(name);
  for (const char* name : kVariables) {
    const auto value = environment.find(name);
    if (value == environment.end())
      unsetenv(name);
    else
      setenv(name, value->second.c_str(), 1);
  }
  function<decltype(stfs_fake_cuda_configure)>("stfs_fake_cuda_configure")();
}

std::string fake_driver_report() {
  std::string text(1 << 16, '\0');
  function<decltype(stfs_fake_cuda_report)>("stfs_fake_cuda_report")(text.data(), text.size());
  text.resize(text.find('\0'));
  return text;
}

std::size_t fake_driver_count(const std::string& what) {
  return function<decltype(stfs_fake_cuda_count)>("stfs_fake_cuda_count")(what.c_str());
}

}  // namespace stfs::gpu::test
