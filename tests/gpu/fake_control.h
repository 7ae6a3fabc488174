// The fake driver, as the tests of this process set it and ask it.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace stfs::gpu::test {

// Whether $STFS_GPU_DRIVER names the fake driver. It does unless someone has set it otherwise.
bool is_fake_driver();

// Sets the environment that fake_driver.h lists to exactly this, and makes the driver read it.
void configure_fake_driver(const std::map<std::string, std::string>& environment = {});

// Empty when nothing leaked and nothing was misused.
std::string fake_driver_report();

std::size_t fake_driver_peak_pinned();
std::size_t fake_driver_calls(const std::string& function);

}  // namespace stfs::gpu::test
