// Loading the driver. A process loads its driver once, so each test runs a process.
#include "tests/support/files.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

// Runs `stfs-gpu devices` with this driver.
Outcome probe(std::vector<std::string> environment, const std::string& driver = STFS_FAKE_DRIVER) {
  environment.push_back("STFS_GPU_DRIVER=" + driver);
  return run({STFS_GPU_BINARY, "devices"}, {.environment = environment});
}

void expect_one_line(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.out.find("cuda:"), std::string::npos) << outcome.out;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
}

TEST(CudaDriver, MissingDriverIsOneLine) {
  const Outcome outcome = probe({}, "/nonexistent/libcuda.so.1");

  expect_one_line(outcome, "there is no NVIDIA driver: /nonexistent/libcuda.so.1");
}

TEST(CudaDriver, ReportsMissingFunction) {
  expect_one_line(probe({}, "libm.so.6"), "libm.so.6: no function cuInit");
}

TEST(CudaDriver, ReportsWhyItCannotStart) {
  // 803: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.
  expect_one_line(probe({"STFS_FAKE_CUDA_FAIL=cuInit:1:803"}), "cuInit: error 803");
  expect_one_line(probe({"STFS_FAKE_CUDA_FAIL=cuDriverGetVersion:1"}),
                  "cuDriverGetVersion: CUDA_ERROR_UNKNOWN");
}

TEST(CudaDriver, ReportsMissingDevice) {
  expect_one_line(probe({"STFS_FAKE_CUDA_DEVICES=0"}),
                  "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
}

TEST(CudaDriver, ReportsErrorWithoutNameByNumber) {
  expect_one_line(probe({"STFS_FAKE_CUDA_FAIL=cuInit:1,cuGetErrorName:1"}), "cuInit: error 999");
  expect_one_line(probe({"STFS_FAKE_CUDA_FAIL=cuInit:1,cuGetErrorString:1"}),
                  "cuInit: CUDA_ERROR_UNKNOWN\n");
}

TEST(CudaDriver, ListingDevicesLeaksNothing) {
  const TempDir directory;
  const std::string report = directory / "report";

  const Outcome outcome = probe({"STFS_FAKE_CUDA_REPORT=" + report});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string text = read_file(report);
  EXPECT_EQ(text.find("leaked"), std::string::npos) << text;
  EXPECT_EQ(text.find("misuse"), std::string::npos) << text;
}

}  // namespace
}  // namespace stfs::gpu::test
