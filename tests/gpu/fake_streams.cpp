// The fake driver's streams, events and captures of graphs. It records no graph: a capture only
// makes other calls fail.
#include "tests/gpu/fake_streams.h"

#include "tests/gpu/fake_machine.h"

#include <utility>

using namespace stfs::gpu::test::fake;  // NOLINT(google-build-using-namespace)

namespace {

CUstreamCaptureMode& capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

// Returns true if a stream is capturing. Invalidates the captures of all such streams.
bool spoils_capture(Machine& m) {
  bool is_spoilt = false;
  for (const auto& [number, stream] : m.streams) {
    if (!stream->is_capturing) continue;
    stream->is_invalidated = true;
    is_spoilt = true;
  }
  return is_spoilt;
}

}  // namespace

bool stfs::gpu::test::fake::disturbs_capture(Machine& m) {
  return capture_mode() != CU_STREAM_CAPTURE_MODE_RELAXED && spoils_capture(m);
}

extern "C" {

// --- streams and events

CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
  BEGIN_IN_CONTEXT(cuStreamCreate);
  const std::uint64_t number = m.next_handle++;
  m.streams[number] =
      std::make_shared<StreamThread>(m, context, number, flags != CU_STREAM_NON_BLOCKING);
  *handle = as_handle<CUstream>(number);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  BEGIN_GIVING_BACK(cuStreamDestroy);
  const auto found = m.streams.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == m.streams.end()) {
    m.misuse("cuStreamDestroy: no such stream");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const std::shared_ptr<StreamThread> stream = std::move(found->second);
  m.streams.erase(found);
  lock.unlock();  // ~StreamThread joins its thread
  return answer;
}

CUresult cuStreamSynchronize(CUstream handle) {
  BEGIN_IN_CONTEXT(cuStreamSynchronize);
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ++m.spinning_waits;
  stream->demand(lock, stream->given());
  return m.fault;
}

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  BEGIN_IN_CONTEXT(cuEventCreate);
  const std::uint64_t number = m.next_handle++;
  m.events[number] = {.is_blocking_wait = (flags & CU_EVENT_BLOCKING_SYNC) != 0};
  *handle = as_handle<CUevent>(number);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle) {
  BEGIN_GIVING_BACK(cuEventDestroy);
  const auto found = m.events.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == m.events.end()) {
    m.misuse("cuEventDestroy: no such event");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  // The event may be the stream's last owner: destroy it without the lock.
  const RecordedEvent event = std::move(found->second);
  m.events.erase(found);
  lock.unlock();
  return answer;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  BEGIN_IN_CONTEXT(cuEventRecord);
  const auto event = m.events.find(reinterpret_cast<std::uint64_t>(handle));
  const auto stream = stream_of(m, context, stream_handle);
  if (event == m.events.end() || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  event->second.stream = stream;
  event->second.position = stream->given();
  return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent handle) {
  BEGIN_IN_CONTEXT(cuEventSynchronize);
  const auto event = m.events.find(reinterpret_cast<std::uint64_t>(handle));
  if (event == m.events.end()) return CUDA_ERROR_INVALID_HANDLE;
  const RecordedEvent recorded = event->second;
  m.spinning_waits += recorded.is_blocking_wait ? 0 : 1;
  if (recorded.stream != nullptr) recorded.stream->demand(lock, recorded.position);
  return m.fault;
}

CUresult cuCtxSynchronize() {
  BEGIN_IN_CONTEXT(cuCtxSynchronize);
  if (spoils_capture(m)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::vector<std::shared_ptr<StreamThread>> all;
  for (const auto& [number, stream] : m.streams) {
    if (&stream->context() == &context) all.push_back(stream);
  }
  if (m.default_streams.contains(context.ordinal))
    all.push_back(m.default_streams.at(context.ordinal));
  ++m.spinning_waits;
  for (const auto& stream : all) stream->demand(lock, stream->given());
  return m.fault;
}

// --- captures

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode) {
  BEGIN_IN_CONTEXT(cuStreamBeginCapture);
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->is_capturing = true;
  stream->is_invalidated = false;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  BEGIN_IN_CONTEXT(cuStreamEndCapture);
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *graph = nullptr;
  stream->is_capturing = false;
  return stream->is_invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

// The default stream takes part in the captures of streams that are not "non-blocking".
CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  BEGIN_IN_CONTEXT(cuStreamIsCapturing);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    for (const auto& [number, stream] : m.streams) {
      if (stream->is_capturing && stream->is_blocking) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return CUDA_SUCCESS;
  }
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->is_capturing) *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  BEGIN(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, capture_mode());
  return CUDA_SUCCESS;
}

}  // extern "C"
