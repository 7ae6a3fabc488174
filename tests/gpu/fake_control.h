// Configures and queries the fake driver of this process.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace stfs::gpu::test {

// Returns true if $STFS_GPU_DRIVER names the fake driver, which is the default.
bool is_fake_driver();

// Sets exactly these variables of fake_driver.h, unsets the others, and makes the driver read them.
void configure_fake_driver(const std::map<std::string, std::string>& environment = {});

// Returns leaks and misuse, one per line, or "".
std::string fake_driver_report();

// Returns stfs_fake_cuda_count(what).
std::size_t fake_driver_count(const std::string& what);

}  // namespace stfs::gpu::test
