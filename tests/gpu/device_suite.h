// What every device must do, whatever stands behind it: one suite, instantiated by the tests of
// each. The bodies are in device_suite.cpp.
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
  // The device, made ready. The test is skipped with what it throws when `may_be_absent`.
  std::function<DeviceInfo()> info;
  bool may_be_absent = false;
  // What stands at an address that map_segment gave.
  std::function<std::vector<std::byte>(std::uint64_t address, std::size_t size)> read;
  // After each test: what it left behind, a line each; empty when all is well.
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
