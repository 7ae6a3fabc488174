#include "tools/gpu/library/dlpack_export.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace stfs::gpu {
namespace {

constexpr std::size_t kCopyAlignment = 256;  // bytes; DLPack requires this alignment of data

DLDataType data_type(const TypeInfo& info) {
  if (info.dlpack == TypeInfo::kNoDlpack) {
    throw Error(ErrorCode::kUsage, "",
                "DLPack has no type for " + std::string(info.name) +
                    ": use STFS_GPU_EXPORT_BYTES or stfs_gpu_pointer");
  }
  return {info.dlpack, static_cast<std::uint8_t>(info.bits()), 1};
}

// What the struct keeps alive: the tensor, or the copy that is exported instead.
struct Exported {
  std::shared_ptr<const LeasedTensor> tensor;
  std::unique_ptr<void, decltype(&std::free)> copy{nullptr, &std::free};
};

template <class Managed>
auto make(const std::shared_ptr<const LeasedTensor>& tensor, ExportAs as) {
  if (as.is_copy && !tensor->is_on_host()) {
    throw Error(ErrorCode::kUsage, tensor->device().id,
                in_quotes(tensor->label) + ": only host memory can be copied");
  }
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(tensor->bytes)};
  if (!as.is_bytes) shape.assign(tensor->shape.begin(), tensor->shape.end());
  auto made = dlpack::make_export<Managed, Exported>(
      shape, data_type(type_info(as.is_bytes ? DType::kU8 : tensor->dtype)),
      {tensor->is_on_host() ? dlpack::kCpu : dlpack::kCuda, tensor->ordinal()});
  void*& data = made->managed.dl_tensor.data;
  data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(tensor->address()));
  if (as.is_copy && tensor->bytes > 0) {
    const std::uint64_t blocks = (tensor->bytes + kCopyAlignment - 1) / kCopyAlignment;
    made->owner.copy.reset(std::aligned_alloc(kCopyAlignment, blocks * kCopyAlignment));
    if (made->owner.copy == nullptr) throw std::bad_alloc();
    std::memcpy(made->owner.copy.get(), data, tensor->bytes);
    data = made->owner.copy.get();
  }
  if (!as.is_copy) made->owner.tensor = tensor;
  return made;
}

}  // namespace

DLManagedTensorVersioned* export_dlpack(const std::shared_ptr<const LeasedTensor>& tensor,
                                        ExportAs as) {
  auto made = make<DLManagedTensorVersioned>(tensor, as);
  made->managed.version = dlpack::kVersion;
  made->managed.flags = as.is_copy ? dlpack::kIsCopied : dlpack::kReadOnly;
  return &made.release()->managed;
}

DLManagedTensor* export_dlpack_unversioned(const std::shared_ptr<const LeasedTensor>& tensor,
                                           ExportAs as) {
  if (tensor->is_on_host() && !as.is_copy) {
    throw Error(ErrorCode::kUsage, tensor->device().id,
                in_quotes(tensor->label) +
                    ": read-only, which DLPack before 1.0 cannot say: export a copy");
  }
  return &make<DLManagedTensor>(tensor, as).release()->managed;
}

}  // namespace stfs::gpu
