// The tensors that `stfs-gpu run` gave to this process: inherited file descriptors, and a list of
// the tensors in them.
//
// The list is a JSON array in a memfd; $STFS_GPU_TENSORS is its path, "/proc/self/fd/N":
//
//   [{"name":"w","label":"/w/m.safetensors::w","key":"...","fd":5,"offset":0,"bytes":8,
//     "segment_bytes":2097152,"dtype":"F32","shape":[2],"device":"cuda:0","uuid":"GPU-..."}]
//
// If a name or a label is not UTF-8, the invalid bytes are replaced by U+FFFD, and `raw_name` or
// `raw_label` is to_json_text() of the original bytes. `fd` is -1 for a tensor without bytes.
// `uuid` identifies the device, because the meaning of "cuda:0" depends on CUDA_VISIBLE_DEVICES.
//
// Thread safety: the functions have no state and may be called from any thread.
#pragma once

#include "core/format/types.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::gpu {

inline constexpr const char* kInheritedVariable = "STFS_GPU_TENSORS";

// The description of a tensor on a device.
struct TensorFacts {
  std::string name = {};   // the name in the checkpoint
  std::string label = {};  // Item::label()
  std::string key = {};    // Item::key()
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape = {};
  std::uint64_t bytes = 0;
};

struct InheritedTensor : TensorFacts {
  int fd = -1;  // the descriptor of the segment; -1 without bytes
  // The position of the tensor in the segment, and the size of the segment, in bytes.
  std::uint64_t offset = 0;
  std::uint64_t segment_bytes = 0;
  std::string device_uuid;
};

// Parses a list. Throws Error kUsage if it is malformed, and kDeviceFailed for a tensor that
// check_placement() refuses.
std::vector<InheritedTensor> parse_inherited(std::string_view json);

// Returns the list of this process, or nullopt if the variable is not set or empty. Throws Error
// like parse_inherited(), and kUnreadable if the list cannot be read.
std::optional<std::vector<InheritedTensor>> inherited_tensors();

// Checks another process's description of a tensor before its memory is used. Throws Error
// kDeviceFailed unless `dtype` and `shape` give `bytes` and [offset, offset + bytes) is inside a
// segment of `segment_bytes`.
void check_placement(const TensorFacts& tensor, std::uint64_t offset, std::uint64_t segment_bytes);

}  // namespace stfs::gpu
