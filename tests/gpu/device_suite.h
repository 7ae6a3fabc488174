// The contract that all devices share: one test suite, instantiated for each back end.
// device_suite.cpp has the tests.
#pragma once

#include "tools/gpu/device/device.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace stfs::gpu::test {

struct DeviceUnderTest {
  std::string name;
  // Prepares the device and returns its properties. If `may_be_absent`, an exception skips the
  // test.
  std::function<DeviceInfo()> info;
  bool may_be_absent = false;
  // Reads `size` bytes at an address in a mapping from map_segment().
  std::function<std::vector<std::byte>(std::uint64_t address, std::size_t size)> read;
  // Called after each test. Returns one line per leak, or "" if nothing has leaked.
  std::function<std::string()> leaks = [] { return std::string(); };
};

inline void PrintTo(const DeviceUnderTest& device, std::ostream* out) { *out << device.name; }

inline std::string name_of(const testing::TestParamInfo<DeviceUnderTest>& info) {
  return info.param.name;
}

class DeviceSuite : public testing::TestWithParam<DeviceUnderTest> {
 protected:
  void SetUp() override;
  void TearDown() override;

  DeviceInfo info_;
};

}  // namespace stfs::gpu::test
