// Loading of the driver. A process loads its driver once, so each test runs a process.
#include "tests/support/files.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

Outcome probe(const std::vector<std::string>& arguments, std::vector<std::string> environment,
              const std::string& driver = STFS_FAKE_DRIVER) {
  environment.push_back("STFS_GPU_DRIVER=" + driver);
  std::vector<std::string> command{STFS_DEVICE_PROBE};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(command, {.environment = environment});
}

void expect_one_line(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.status, 5) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
}

TEST(CudaDriver, ThatIsNotThereIsOneLine) {
  const Outcome outcome = probe({"devices"}, {}, "/nonexistent/libcuda.so.1");

  expect_one_line(outcome, "there is no NVIDIA driver: /nonexistent/libcuda.so.1");
}

TEST(CudaDriver, ThatLacksAFunctionSaysWhich) {
  expect_one_line(probe({"devices"}, {}, "libm.so.6"), "libm.so.6: no function cuInit");
}

TEST(CudaDriver, ThatCannotStartSaysWhy) {
  // 803: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.
  expect_one_line(probe({"devices"}, {"STFS_FAKE_CUDA_FAIL=cuInit:1:803"}), "cuInit: error 803");
  expect_one_line(probe({"devices"}, {"STFS_FAKE_CUDA_FAIL=cuDriverGetVersion:1"}),
                  "cuDriverGetVersion: CUDA_ERROR_UNKNOWN");
}

TEST(CudaDriver, WithoutADeviceSaysSo) {
  expect_one_line(probe({"devices"}, {"STFS_FAKE_CUDA_DEVICES=0"}),
                  "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
}

TEST(CudaDriver, WithoutAnErrorsNameGivesItsNumber) {
  expect_one_line(probe({"devices"}, {"STFS_FAKE_CUDA_FAIL=cuInit:1,cuGetErrorName:1"}),
                  "cuInit: error 999");
  expect_one_line(probe({"devices"}, {"STFS_FAKE_CUDA_FAIL=cuInit:1,cuGetErrorString:1"}),
                  "cuInit: CUDA_ERROR_UNKNOWN\n");
}

TEST(CudaDriver, KeepsMemoryForWhoeverHasItsDescriptor) {
  const TempDir directory;
  const std::string report = directory / "report";

  const Outcome outcome = probe({"survival", "cuda:0", "4194304"},
                                {"STFS_FAKE_CUDA_LATE=always", "STFS_FAKE_CUDA_REPORT=" + report});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\"survives\": true"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\"mapping_outlives_descriptor\": true"), std::string::npos);
  EXPECT_NE(outcome.out.find("\"bytes_freed_with_the_last_user\": 4194304"), std::string::npos);
  const std::string text = read_file(report);
  EXPECT_EQ(text.find("leaked"), std::string::npos) << text;
  EXPECT_EQ(text.find("misuse"), std::string::npos) << text;
  EXPECT_NE(text.find("peak pinned bytes"), std::string::npos) << text;
}

TEST(CudaDriver, IsAskedForItsDevicesWithoutLeavingAnythingBehind) {
  const TempDir directory;
  const std::string report = directory / "report";

  const Outcome outcome = probe({"devices"}, {"STFS_FAKE_CUDA_REPORT=" + report});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string text = read_file(report);
  EXPECT_EQ(text.find("leaked"), std::string::npos) << text;
  EXPECT_EQ(text.find("misuse"), std::string::npos) << text;
}

}  // namespace
}  // namespace stfs::gpu::test
