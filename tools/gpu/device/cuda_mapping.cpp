// Published segments of GPU memory that are mapped for reading, in a process that uses the GPU as
// well.
#include "tools/gpu/device/cuda_resources.h"

#include <memory>

namespace stfs::gpu {
namespace {

// During a scope, lets this thread make calls that would otherwise invalidate a capture of a graph
// on any stream.
class BesidesCaptures {
 public:
  explicit BesidesCaptures(const CudaDriver& cuda) noexcept : cuda_(cuda) {
    is_exchanged_ = cuda_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  BesidesCaptures(const BesidesCaptures&) = delete;
  BesidesCaptures& operator=(const BesidesCaptures&) = delete;
  ~BesidesCaptures() {
    if (is_exchanged_) cuda_.cuThreadExchangeStreamCaptureMode(&mode_);
  }

 private:
  const CudaDriver& cuda_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool is_exchanged_ = false;
};

// Waits for all work in the current context. Returns false, without waiting, while a stream
// captures a graph, because the wait would invalidate the capture. The default stream's status
// shows captures on streams that synchronise with it; a capture on another stream shows only when
// the wait itself fails.
bool settle(const CudaDriver& cuda) noexcept {
  const auto is_of_capture = [](CUresult result) {
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  };
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = cuda.cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
  if (is_of_capture(result) || status != CU_STREAM_CAPTURE_STATUS_NONE) return false;
  result = cuda.cuCtxSynchronize();
  // As in wait_for(), the error may be an earlier one, so call again. A dead context runs no work.
  if (result != CUDA_SUCCESS && !is_of_capture(result)) result = cuda.cuCtxSynchronize();
  return !is_of_capture(result);
}

class MappedCudaSegment : public MappedSegment {
 public:
  MappedCudaSegment(const CudaDriver& cuda, const DeviceInfo& info, int fd, std::uint64_t bytes)
      : cuda_(cuda),
        device_(device_of(cuda, info)),
        context_(std::make_unique<PrimaryContext>(cuda, info.id, device_)) {
    const Current current(cuda_, context_->get());
    const BesidesCaptures besides(cuda_);
    CUmemGenericAllocationHandle handle = 0;
    // The parameter holds the descriptor itself, not its address.
    void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    cuda_.check(cuda_.cuMemImportFromShareableHandle(&handle, shareable,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "cuMemImportFromShareableHandle");
    // Release the handle on return, because the mapping keeps the memory.
    const Allocation allocation(cuda_, handle);
    range_ = std::make_unique<MappedRange>(cuda_, info.id, device_, handle, bytes, true);
  }
  ~MappedCudaSegment() override {
    if (MappedCudaSegment::unmap()) return;
    static_cast<void>(range_.release());
    static_cast<void>(context_.release());
  }

  bool unmap() noexcept override {
    if (range_ == nullptr) return true;
    const Current current(cuda_, context_->get(), std::nothrow);
    const BesidesCaptures besides(cuda_);
    if (!settle(cuda_)) return false;
    range_.reset();
    return true;
  }

  std::uint64_t address() const override { return range_->address(); }

 private:
  const CudaDriver& cuda_;
  CUdevice device_;
  std::unique_ptr<PrimaryContext> context_;
  std::unique_ptr<MappedRange> range_;
};

}  // namespace

std::unique_ptr<MappedSegment> map_cuda_segment(const DeviceInfo& info, int fd,
                                                std::uint64_t bytes) {
  return std::make_unique<MappedCudaSegment>(cuda_driver(), info, fd, bytes);
}

}  // namespace stfs::gpu
