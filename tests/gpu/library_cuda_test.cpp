// The functions of stfs_gpu.h with tensors on two GPUs of the fake driver.
#include "core/base/dlpack.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/process.h"
#include "tools/gpu/device/driver.h"
#include "tools/gpu/library/include/stfs_gpu.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;
using stfs::test::Tensor;  // not stfs::Tensor

namespace {

using ::testing::IsSubstring;

// Reads device memory like a CUDA program.
std::string read_device(std::uint64_t pointer, std::size_t size, int ordinal) {
  const CudaDriver& cuda = cuda_driver();
  CUdevice device = 0;
  CUcontext context = nullptr;
  std::string bytes(size, '\0');
  cuda.check(cuda.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  cuda.check(cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  cuda.check(cuda.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  cuda.check(cuda.cuMemcpyDtoH(bytes.data(), pointer, size), "cuMemcpyDtoH");
  cuda.check(cuda.cuCtxPopCurrent(&context), "cuCtxPopCurrent");
  cuda.check(cuda.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
  return bytes;
}

class LibraryCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    // The same values in all tests, because a process loads the driver only once.
    const std::string space = "library" + std::to_string(::getpid());
    ::setenv("STFS_GPU_DRIVER", STFS_FAKE_DRIVER, 1);
    ::setenv("STFS_FAKE_CUDA_SPACE", space.c_str(), 1);
    ::setenv("STFS_FAKE_CUDA_DEVICES", "2", 1);
    ::setenv("STFS_FAKE_CUDA_LATE", "always", 1);
    ::setenv("STFS_GPU_SOCKET", (dir_ / "socket").c_str(), 1);
    write_safetensors(source(), {kTensor, kOther});
    holder_.emplace(std::vector<std::string>{STFS_GPU_BINARY, "holder"});
    ASSERT_TRUE(eventually([this] {
      return stfs_gpu_connect(nullptr, 0, &connection_) == STFS_GPU_OK;
    })) << stfs_gpu_last_error();
  }

  void TearDown() override {
    for (stfs_gpu_tensors* tensors : acquired_) stfs_gpu_release(tensors);
    stfs_gpu_disconnect(connection_);
    holder_->signal(SIGTERM);
    EXPECT_EQ(holder_->wait().status, 0) << holder_->err();
    ::unsetenv("STFS_GPU_SOCKET");
  }

  std::string source() const { return dir_ / "m.safetensors"; }

  // Acquires tensors. If a device is given, loads missing tensors. Returns null on failure.
  stfs_gpu_tensors* acquire(const std::vector<std::string>& tensors, const char* device) {
    std::vector<std::string> names;
    std::vector<const char*> pointers;
    for (const std::string& tensor : tensors) names.push_back(source() + "::" + tensor);
    for (const std::string& name : names) pointers.push_back(name.c_str());
    stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;
    options.device = device;
    options.load_if_missing = device != nullptr;
    stfs_gpu_tensors* acquired = nullptr;
    status_ = stfs_gpu_acquire(connection_, pointers.data(), pointers.size(), &options, &acquired);
    acquired_.push_back(acquired);
    return acquired;
  }

  static stfs_gpu_tensor_info info_of(const stfs_gpu_tensors* tensors) {
    stfs_gpu_tensor_info info{};
    info.size = sizeof info;
    EXPECT_EQ(stfs_gpu_info(tensors, 0, &info), STFS_GPU_OK) << stfs_gpu_last_error();
    return info;
  }

  const Tensor kTensor = random_tensor("w", "F32", {64, 64}, 1);
  const Tensor kOther = random_tensor("v", "BF16", {8}, 2);
  TempDir dir_;
  std::optional<Process> holder_;
  stfs_gpu_connection* connection_ = nullptr;
  std::vector<stfs_gpu_tensors*> acquired_;
  int status_ = STFS_GPU_OK;
};

TEST_F(LibraryCuda, ReturnsPointerOfChosenDevice) {
  const stfs_gpu_tensors* tensors = acquire({"w"}, "cuda:1");
  ASSERT_NE(tensors, nullptr) << stfs_gpu_last_error();

  const stfs_gpu_tensor_info info = info_of(tensors);
  EXPECT_STREQ(info.device, "cuda:1");
  EXPECT_EQ(info.device_type, STFS_GPU_DEVICE_CUDA);
  EXPECT_EQ(info.device_ordinal, 1);
  EXPECT_TRUE(std::string(info.device_uuid).starts_with("GPU-"));
  EXPECT_EQ(read_device(info.pointer, info.bytes, 1), kTensor.bytes);
}

TEST_F(LibraryCuda, ExportsTensorOnItsDevice) {
  const stfs_gpu_tensors* tensors = acquire({"w"}, "cuda:1");
  ASSERT_NE(tensors, nullptr) << stfs_gpu_last_error();
  DLManagedTensorVersioned* exported = nullptr;
  DLManagedTensor* unversioned = nullptr;

  ASSERT_EQ(stfs_gpu_export(tensors, 0, 0, &exported), STFS_GPU_OK) << stfs_gpu_last_error();
  ASSERT_EQ(stfs_gpu_export_unversioned(tensors, 0, 0, &unversioned), STFS_GPU_OK);
  EXPECT_EQ(exported->flags, dlpack::kReadOnly);
  for (const DLTensor& tensor : {exported->dl_tensor, unversioned->dl_tensor}) {
    EXPECT_EQ(tensor.device.device_type, dlpack::kCuda);
    EXPECT_EQ(tensor.device.device_id, 1);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data), info_of(tensors).pointer);
  }
  stfs_gpu_release(std::exchange(acquired_.back(), nullptr));
  unversioned->deleter(unversioned);
  const auto pointer = reinterpret_cast<std::uintptr_t>(exported->dl_tensor.data);
  EXPECT_EQ(read_device(pointer, kTensor.bytes.size(), 1), kTensor.bytes);
  exported->deleter(exported);

  tensors = acquire({"w"}, nullptr);
  EXPECT_EQ(stfs_gpu_export(tensors, 0, STFS_GPU_EXPORT_COPY, &exported), STFS_GPU_USAGE);
}

// A program that uses cuda:0: its context is current, and it has a stream.
class Program {
 public:
  explicit Program(unsigned flags = CU_STREAM_NON_BLOCKING) {
    cuda.check(cuda.cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    cuda.check(cuda.cuCtxPushCurrent(context_), "cuCtxPushCurrent");
    cuda.check(cuda.cuStreamCreate(&stream, flags), "cuStreamCreate");
    cuda.check(cuda.cuMemHostAlloc(&pinned, kBytes, 0), "cuMemHostAlloc");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    cuda.cuStreamDestroy(stream);
    cuda.cuMemFreeHost(pinned);
    cuda.cuCtxPopCurrent(&context_);
    cuda.cuDevicePrimaryCtxRelease(0);
  }

  CUresult begin_capture() const {
    return function<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
        stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  }
  CUresult end_capture() const {
    CUgraph graph = nullptr;
    return function<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph);
  }
  // Returns true if this program can read the byte at `pointer`.
  bool is_mapped(std::uint64_t pointer) const {
    char byte = 0;
    return cuda.cuMemcpyDtoH(&byte, pointer, 1) == CUDA_SUCCESS;
  }

  static constexpr std::size_t kBytes = 64 * 64 * 4;
  const CudaDriver& cuda = cuda_driver();
  CUstream stream = nullptr;
  void* pinned = nullptr;

 private:
  template <class Function>
  static Function* function(const char* name) {
    void* library = ::dlopen(STFS_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Function*>(::dlsym(library, name));
  }

  CUcontext context_ = nullptr;
};

TEST_F(LibraryCuda, ReleasedTensorStaysMappedWhileStreamReadsIt) {
  for (const bool is_exported : {false, true}) {
    SCOPED_TRACE(is_exported);
    const stfs_gpu_tensors* tensors = acquire({"w"}, "cuda:0");
    ASSERT_NE(tensors, nullptr) << stfs_gpu_last_error();
    DLManagedTensorVersioned* exported = nullptr;
    ASSERT_EQ(stfs_gpu_export(tensors, 0, 0, &exported), STFS_GPU_OK) << stfs_gpu_last_error();
    const std::uint64_t pointer = info_of(tensors).pointer;
    if (is_exported) {
      stfs_gpu_release(std::exchange(acquired_.back(), nullptr));
    } else {
      exported->deleter(exported);
    }
    const Program program;
    ASSERT_EQ(
        program.cuda.cuMemcpyDtoHAsync(program.pinned, pointer, Program::kBytes, program.stream),
        CUDA_SUCCESS);

    if (is_exported) {
      exported->deleter(exported);
    } else {
      stfs_gpu_release(std::exchange(acquired_.back(), nullptr));
    }

    EXPECT_EQ(program.cuda.cuStreamSynchronize(program.stream), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(program.pinned, kTensor.bytes.data(), Program::kBytes), 0);
    EXPECT_FALSE(program.is_mapped(pointer));
  }
}

TEST_F(LibraryCuda, ReleasedTensorStaysMappedDuringStreamCapture) {
  ASSERT_NE(acquire({"v"}, "cuda:0"), nullptr) << stfs_gpu_last_error();
  for (const unsigned flags : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING}) {
    const stfs_gpu_tensors* tensors = acquire({"w"}, "cuda:0");
    ASSERT_NE(tensors, nullptr) << stfs_gpu_last_error();
    const std::uint64_t pointer = info_of(tensors).pointer;
    const Program program(flags);
    ASSERT_EQ(program.begin_capture(), CUDA_SUCCESS);

    stfs_gpu_release(std::exchange(acquired_.back(), nullptr));

    EXPECT_TRUE(program.is_mapped(pointer));
    const CUresult captured = program.end_capture();
    if (flags == CU_STREAM_DEFAULT) {
      EXPECT_EQ(captured, CUDA_SUCCESS);
    }
    ASSERT_NE(acquire({"v"}, "cuda:0"), nullptr) << stfs_gpu_last_error();
    EXPECT_FALSE(program.is_mapped(pointer)) << "the next call unmaps it";
  }
}

TEST_F(LibraryCuda, ReportsTensorsOnSeveralDevices) {
  ASSERT_NE(acquire({"w"}, "cuda:0"), nullptr) << stfs_gpu_last_error();
  ASSERT_NE(acquire({"v"}, "cuda:1"), nullptr) << stfs_gpu_last_error();

  EXPECT_EQ(acquire({"w", "v"}, nullptr), nullptr);
  EXPECT_EQ(status_, STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "not on one device: ", stfs_gpu_last_error());
  EXPECT_PRED_FORMAT2(IsSubstring, "::w\" is on GPU-", stfs_gpu_last_error());
  EXPECT_PRED_FORMAT2(IsSubstring, "::v\" is on GPU-", stfs_gpu_last_error());

  ASSERT_NE(acquire({"w"}, "cuda:1"), nullptr) << stfs_gpu_last_error();
  EXPECT_EQ(acquire({"w"}, nullptr), nullptr);
  EXPECT_PRED_FORMAT2(IsSubstring, "the tensors are on several devices: ", stfs_gpu_last_error());
  EXPECT_NE(acquire({"w", "v"}, nullptr), nullptr) << stfs_gpu_last_error();  // both are on cuda:1
}

TEST_F(LibraryCuda, ReportsUnknownDevice) {
  EXPECT_EQ(acquire({"w"}, "cuda:7"), nullptr);
  EXPECT_EQ(status_, STFS_GPU_DEVICE);
  EXPECT_PRED_FORMAT2(IsSubstring, "cuda:7", stfs_gpu_last_error());
}

}  // namespace
}  // namespace stfs::gpu::test
