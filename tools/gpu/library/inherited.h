// The tensors that `stfs-gpu run` gave to this process: inherited descriptors, and a list of
// the tensors in them.
//
// The list is a JSON array in a memfd; $STFS_GPU_TENSORS is its path, "/proc/self/fd/N":
//
//   [{"name":"w","label":"/w/m.safetensors::w","key":"...","fd":5,"offset":0,"bytes":8,
//     "segment_bytes":2097152,"dtype":"F32","shape":[2],"device":"cuda:0","uuid":"GPU-..."}]
//
// Where name or label is not UTF-8, it has U+FFFD, and `raw_name` or `raw_label` is to_json_text()
// of its bytes. `fd` is -1 for a tensor without bytes. `uuid` names the device: "cuda:0" depends on
// CUDA_VISIBLE_DEVICES. Thread safety: functions without state.
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
  std::string name = {};   // in the checkpoint
  std::string label = {};  // Item::label()
  std::string key = {};    // Item::key()
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape = {};
  std::uint64_t bytes = 0;
};

struct InheritedTensor : TensorFacts {
  int fd = -1;  // of the segment
  std::uint64_t offset = 0;
  std::uint64_t segment_bytes = 0;
  std::string device_uuid;
};

// Throws Error kUsage for a malformed list, kDeviceFailed for a tensor that check_placement
// refuses.
std::vector<InheritedTensor> parse_inherited(std::string_view json);

// The list of this process; nothing when the variable is not set. Throws as parse_inherited, and
// Error kUnreadable.
std::optional<std::vector<InheritedTensor>> inherited_tensors();

// Checks another process's description of a tensor before its memory is touched. Throws Error
// kDeviceFailed unless dtype and shape make its bytes and [offset, offset + bytes) lies in a
// segment of `segment_bytes`.
void check_placement(const TensorFacts& tensor, std::uint64_t offset, std::uint64_t segment_bytes);

}  // namespace stfs::gpu
