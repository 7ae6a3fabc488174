// The structs of DLPack 1.1, by which array libraries share memory. Written from the specification
// (https://dmlc.github.io/dlpack/latest/c_api.html): layout and numbers alone.
#pragma once

#include <cstdint>

extern "C" {

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DLDevice {
  std::int32_t device_type;  // DLDeviceType
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;  // DLDataTypeCode: TypeInfo::dlpack
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;  // null when there are no elements
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

}  // extern "C"

namespace stfs::gpu::dlpack {

inline constexpr DLPackVersion kVersion{1, 1};

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;

}  // namespace stfs::gpu::dlpack
