// The structs of DLPack 1.1, with which array libraries share memory. Layout and numbers are those
// of the specification (https://dmlc.github.io/dlpack/latest/c_api.html). make_export() makes such
// a struct for libstfs and for libstfs_gpu.
//
// Thread safety: make_export() may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
  std::uint8_t code;  // DLDataTypeCode, from TypeInfo::dlpack
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;  // null if there are no elements
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

namespace stfs::dlpack {

inline constexpr DLPackVersion kVersion{1, 1};

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;

// A managed tensor of either kind, together with everything that it refers to. The consumer owns it
// and calls `deleter`, which frees the whole Export.
template <class Managed, class Owner>
struct Export {
  Managed managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  Owner owner{};  // keeps the memory of the elements alive
};

// Makes an export of a row-major tensor without gaps. The caller sets `owner` and `data`, and
// releases the pointer when it hands the tensor to a consumer.
template <class Managed, class Owner>
std::unique_ptr<Export<Managed, Owner>> make_export(std::span<const std::int64_t> shape,
                                                    DLDataType type, DLDevice device) {
  auto made = std::make_unique<Export<Managed, Owner>>();
  made->shape.assign(shape.begin(), shape.end());
  made->strides.resize(made->shape.size());
  // May wrap for a tensor without elements. The strides of such a tensor have no meaning.
  std::uint64_t stride = 1;
  for (std::size_t i = made->shape.size(); i-- > 0;) {
    made->strides[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(made->shape[i]);
  }
  made->managed.dl_tensor = {.data = nullptr,
                             .device = device,
                             .ndim = static_cast<std::int32_t>(made->shape.size()),
                             .dtype = type,
                             .shape = made->shape.data(),
                             .strides = made->strides.data(),
                             .byte_offset = 0};
  made->managed.manager_ctx = made.get();
  made->managed.deleter = [](Managed* self) {
    if (self != nullptr) delete static_cast<Export<Managed, Owner>*>(self->manager_ctx);
  };
  return made;
}

}  // namespace stfs::dlpack
