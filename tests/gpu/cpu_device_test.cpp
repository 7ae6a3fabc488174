// Host memory as a device: the contract that all devices share, and the size of host memory.
#include "tests/gpu/device_suite.h"
#include "tests/support/files.h"
#include "tests/support/sizes.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/host_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

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

// Writes fake /proc and cgroup files below a directory.
class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    file("proc/meminfo", "MemTotal:  1048576 kB\nMemFree:  1 kB\nMemAvailable:  524288 kB\n");
  }
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_file(dir_ / name, text);
  }
  // Writes a group of cgroups v2: its limit, its use, and the inactive page cache within that use.
  void v2(const std::string& group, const std::string& limit, std::uint64_t used,
          std::uint64_t inactive) const {
    const std::string at = "sys/fs/cgroup" + group;
    file(at + "/memory.max", limit + "\n");
    file(at + "/memory.current", std::to_string(used) + "\n");
    file(at + "/memory.stat",
         "anon 5\nactive_file 3\ninactive_file " + std::to_string(inactive) + "\nunevictable 0\n");
  }
  void in_v2(const std::string& process, const std::string& mounted) const {
    file("proc/self/cgroup", "1:name=systemd:/other\n0::" + process + "\n");
    file("proc/self/mountinfo",
         "30 20 0:26 / /sys rw,nosuid - sysfs sysfs rw\n31 30 0:27 " + mounted +
             " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void expect(std::uint64_t total, std::uint64_t available) const {
    const HostMemory memory = host_memory(dir_.path().string());
    EXPECT_EQ(memory.total, total);
    EXPECT_EQ(memory.available, available);
  }

  TempDir dir_;
};

TEST_F(HostMemoryTest, EqualsMachineMemoryWithoutCgroupLimit) {
  expect(1024 * kMiB, 512 * kMiB);
  in_v2("/user.slice/a", "/");
  expect(1024 * kMiB, 512 * kMiB);
  v2("/user.slice/a", "max", 300 * kMiB, 0);
  expect(1024 * kMiB, 512 * kMiB);
}

TEST_F(HostMemoryTest, CountsInactivePageCacheAsAvailableUnderCgroupLimit) {
  struct Row {
    std::uint64_t limit, used, inactive, total, available;  // MiB
  };
  in_v2("/user.slice/a", "/");
  for (const Row& row : {Row{200, 50, 0, 200, 150},
                         {200, 190, 100, 200, 110},
                         {200, 90, 100, 200, 200},  // the kernel updates both at different times
                         {200, 201, 0, 200, 0},
                         {4096, 0, 0, 1024, 512}}) {
    SCOPED_TRACE(row.used);
    v2("/user.slice/a", std::to_string(row.limit * kMiB), row.used * kMiB, row.inactive * kMiB);
    expect(row.total * kMiB, row.available * kMiB);
  }
}

TEST_F(HostMemoryTest, AppliesLimitsFromParentCgroups) {
  in_v2("/user.slice/a/b", "/");
  v2("/user.slice/a/b", "max", 10 * kMiB, 0);
  v2("/user.slice/a", std::to_string(300 * kMiB), 40 * kMiB, 0);
  v2("/user.slice", std::to_string(200 * kMiB), 60 * kMiB, 0);
  expect(200 * kMiB, 140 * kMiB);
}

TEST_F(HostMemoryTest, AppliesCgroupLimitInsideContainer) {
  v2("", std::to_string(200 * kMiB), 50 * kMiB, 0);
  for (const auto& [process, mounted] : {std::pair("/", "/"), std::pair("/docker/1", "/docker/1"),
                                         std::pair("/../2", "/"), std::pair("/x", "/docker/1")}) {
    in_v2(process, mounted);
    expect(200 * kMiB, 150 * kMiB);
  }
  in_v2("/docker/1/inner", "/docker/1");
  v2("/inner", std::to_string(100 * kMiB), 0, 0);
  expect(100 * kMiB, 100 * kMiB);
}

TEST_F(HostMemoryTest, AppliesCgroupV1Limits) {
  file("proc/self/cgroup", "5:cpu,cpuacct:/no\n4:memory:/docker/1\n0::/\n");
  file("proc/self/mountinfo",
       "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
       "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
       "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(200 * kMiB) + "\n");
  file("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(150 * kMiB) + "\n");
  file("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n");
  expect(200 * kMiB, 100 * kMiB);
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  expect(1024 * kMiB, 512 * kMiB);
}

TEST_F(HostMemoryTest, EqualsMachineMemoryIfCgroupFilesAreMalformed) {
  in_v2("", "/");
  v2("", "nonsense", 0, 0);
  expect(1024 * kMiB, 512 * kMiB);
  for (const char* name : {"proc/self/cgroup", "proc/self/mountinfo"}) file(name, "\n:\n- -\n");
  expect(1024 * kMiB, 512 * kMiB);
}

TEST(HostMemory, ReportsMemoryOnThisMachine) {
  EXPECT_GT(host_memory().available, 0u);
  EXPECT_GE(host_memory().total, host_memory().available);
  EXPECT_EQ(cpu_info().total_bytes, host_memory().total);
}

}  // namespace
}  // namespace stfs::gpu::test
