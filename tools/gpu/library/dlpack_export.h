// Exports a leased tensor as DLPack's structs, for array libraries. The consumer owns the struct;
// it keeps the tensor until the consumer calls the deleter, on any thread. Memory that is no copy
// is read-only on every device, because other processes see the same bytes.
//
// `is_copy`: a private copy that the consumer may write to; host memory only.
#pragma once

#include "tools/gpu/library/dlpack.h"
#include "tools/gpu/library/tensor_leases.h"

#include <memory>

namespace stfs::gpu {

// Throws Error kUsage where a copy cannot be made.
DLManagedTensorVersioned* export_dlpack(const std::shared_ptr<const LeasedTensor>& tensor,
                                        bool is_copy);

// For consumers older than DLPack 1.0. This struct has no read-only flag, so DLPack's Python
// specification requires a refusal: throws Error kUsage for host memory without a copy. Device
// memory is exported, because GPU array libraries have no read-only arrays.
DLManagedTensor* export_dlpack_unversioned(const std::shared_ptr<const LeasedTensor>& tensor,
                                           bool is_copy);

}  // namespace stfs::gpu
