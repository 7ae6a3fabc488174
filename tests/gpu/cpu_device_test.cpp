// Memory of the host as a device: the suite of every device.
#include "tests/gpu/device_suite.h"
#include "tools/gpu/device.h"

#include <gtest/gtest.h>

#include <cstring>

namespace stfs::gpu::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceSuite,
                         testing::Values(DeviceUnderTest{
                             .name = "cpu",
                             .info = cpu_info,
                             .read =
                                 [](std::uint64_t address, std::size_t size) {
                                   std::vector<std::byte> bytes(size);
                                   std::memcpy(bytes.data(), reinterpret_cast<const void*>(address),
                                               size);
                                   return bytes;
                                 }}),
                         name_of);

}  // namespace
}  // namespace stfs::gpu::test
