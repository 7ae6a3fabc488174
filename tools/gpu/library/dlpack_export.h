// Exports a leased tensor as DLPack's structs, for array libraries. The consumer owns the struct;
// it keeps the tensor until the consumer calls the deleter, on any thread. Memory that is no copy
// is read-only on every device, because other processes see the same bytes.
#pragma once

#include "core/base/dlpack.h"
#include "tools/gpu/library/tensor_leases.h"

#include <memory>

namespace stfs::gpu {

struct ExportAs {
  bool is_copy = false;   // a private copy that the consumer may write to; host memory only
  bool is_bytes = false;  // U8 of one dimension, whatever the type
};

// Throws Error kUsage where a copy cannot be made, and for a type that DLPack lacks.
DLManagedTensorVersioned* export_dlpack(const std::shared_ptr<const LeasedTensor>& tensor,
                                        ExportAs as);

// For consumers older than DLPack 1.0. This struct has no read-only flag, so DLPack's Python
// specification requires a refusal: throws Error kUsage for host memory without a copy. Device
// memory is exported, because GPU array libraries have no read-only arrays.
DLManagedTensor* export_dlpack_unversioned(const std::shared_ptr<const LeasedTensor>& tensor,
                                           ExportAs as);

}  // namespace stfs::gpu
