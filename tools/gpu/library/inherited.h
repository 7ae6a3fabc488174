// The tensors that a process was given when it was started by `stfs-gpu run`: descriptors that it
// inherited, and a list of what they hold.
//
// The list is a JSON array in a memfd that $STFS_GPU_TENSORS names, "/proc/self/fd/N":
//
//   [{"name":"w","label":"/w/m.safetensors::w","key":"...","fd":5,"offset":0,"bytes":8,
//     "segment_bytes":2097152,"dtype":"F32","shape":[2],"device":"cuda:0","uuid":"GPU-..."}]
//
// `label` is to_json_text() of Item::label(), `fd` is -1 for a tensor without bytes. The device is
// the UUID: numbers depend on what a process may see. Thread safety: functions.
#pragma once

#include "core/format/types.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::gpu {

inline constexpr const char* kInheritedVariable = "STFS_GPU_TENSORS";

struct InheritedTensor {
  std::string name;   // in the checkpoint
  std::string label;  // Item::label()
  std::string key;    // Item::key()
  int fd = -1;        // of the segment
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t segment_bytes = 0;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::string device_uuid;
};

// Throws Error kUsage for what is no such list, or names memory outside its segment.
std::vector<InheritedTensor> parse_inherited(std::string_view json);

// What this process was given; nothing when the variable is not set. Throws Error kUsage,
// kUnreadable.
std::optional<std::vector<InheritedTensor>> inherited_tensors();

// Throws Error kDeviceFailed unless a tensor of this type and shape has `bytes` bytes and they lie
// at [offset, offset+bytes) of a segment of this size: what another process said is checked before
// memory is touched.
void check_place(const std::string& label, DType dtype, std::span<const std::uint64_t> shape,
                 std::uint64_t bytes, std::uint64_t offset, std::uint64_t segment_bytes);

}  // namespace stfs::gpu
