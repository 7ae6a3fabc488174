#include "tools/gpu/library/dlpack_export.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace stfs::gpu {
namespace {

constexpr std::size_t kCopyAlignment = 256;  // bytes, as DLPack asks of data

DLDataType data_type(const TypeInfo& info) {
  if (info.dlpack == TypeInfo::kNoDlpack) {
    throw Error(ErrorCode::kUsage, "",
                "DLPack has no type for " + std::string(info.name) +
                    ": use STFS_GPU_EXPORT_BYTES or stfs_gpu_pointer");
  }
  return {info.dlpack, static_cast<std::uint8_t>(info.bits()), 1};
}

// A managed tensor of either kind, with the memory that it refers to.
template <class Managed>
struct Export {
  Managed managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::shared_ptr<const LeasedTensor> tensor;
  std::unique_ptr<void, decltype(&std::free)> copy{nullptr, &std::free};
};

template <class Managed>
std::unique_ptr<Export<Managed>> make(const std::shared_ptr<const LeasedTensor>& tensor,
                                      ExportAs as) {
  if (as.is_copy && !tensor->is_on_host()) {
    throw Error(ErrorCode::kUsage, tensor->device().id,
                in_quotes(tensor->label()) + ": only host memory can be copied");
  }
  auto made = std::make_unique<Export<Managed>>();
  if (as.is_bytes) {
    made->shape.push_back(static_cast<std::int64_t>(tensor->bytes()));
  } else {
    made->shape.assign(tensor->shape().begin(), tensor->shape().end());
  }
  made->strides.resize(made->shape.size());
  std::uint64_t stride = 1;  // of a tensor without elements it may wrap, and says nothing
  for (std::size_t i = made->shape.size(); i-- > 0;) {
    made->strides[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(made->shape[i]);
  }

  DLTensor& description = made->managed.dl_tensor;
  description.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(tensor->address()));
  description.device = {tensor->is_on_host() ? dlpack::kCpu : dlpack::kCuda, tensor->ordinal()};
  description.ndim = static_cast<std::int32_t>(made->shape.size());
  description.dtype = data_type(type_info(as.is_bytes ? DType::kU8 : tensor->dtype()));
  description.shape = made->shape.data();
  description.strides = made->strides.data();
  if (as.is_copy && tensor->bytes() > 0) {
    const std::uint64_t blocks = (tensor->bytes() + kCopyAlignment - 1) / kCopyAlignment;
    made->copy.reset(std::aligned_alloc(kCopyAlignment, blocks * kCopyAlignment));
    if (made->copy == nullptr) throw std::bad_alloc();
    std::memcpy(made->copy.get(), description.data, tensor->bytes());
    description.data = made->copy.get();
  }
  if (!as.is_copy) made->tensor = tensor;

  made->managed.manager_ctx = made.get();
  made->managed.deleter = [](Managed* self) {
    if (self != nullptr) delete static_cast<Export<Managed>*>(self->manager_ctx);
  };
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
                in_quotes(tensor->label()) +
                    ": read-only, which DLPack before 1.0 cannot say: export a copy");
  }
  return &make<DLManagedTensor>(tensor, as).release()->managed;
}

}  // namespace stfs::gpu
