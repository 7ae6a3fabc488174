// A leased tensor as DLPack's structs, for array libraries. Each holds on to the tensor until its
// deleter is called, which may be from any thread. What is no copy is read-only, on every device:
// others see the same bytes.
//
// `is_copy`: a copy that the consumer may write to. Only of host memory.
#pragma once

#include "tools/gpu/library/dlpack.h"
#include "tools/gpu/library/tensor_leases.h"

#include <memory>

namespace stfs::gpu {

// Throws Error kUsage where a copy cannot be made.
DLManagedTensorVersioned* export_dlpack(const std::shared_ptr<const LeasedTensor>& tensor,
                                        bool is_copy);

// For consumers older than DLPack 1.0. That struct cannot say read-only, and DLPack's Python
// specification asks for a refusal then: throws Error kUsage for host memory too. Device memory is
// exported all the same, since array libraries of GPUs have no read-only arrays anyway.
DLManagedTensor* export_dlpack_unversioned(const std::shared_ptr<const LeasedTensor>& tensor,
                                           bool is_copy);

}  // namespace stfs::gpu
