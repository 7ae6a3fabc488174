// The contract of every device: one test suite, instantiated for each back end. The bodies are in
// device_suite.cpp.
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
  // Prepares and returns the device. With `may_be_absent`, its exception skips the test.
  std::function<DeviceInfo()> info;
  bool may_be_absent = false;
  // Reads `size` bytes at an address of map_segment().
  std::function<std::vector<std::byte>(std::uint64_t address, std::size_t size)> read;
  // After each test: one line per leak; empty without one.
  std::function<std::string()> left_behind = [] { return std::string(); };
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
