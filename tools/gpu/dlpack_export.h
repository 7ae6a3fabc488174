// A leased tensor as DLPack's structs, for array libraries. Each holds on to the tensor until its
// deleter is called, which may be from any thread.
//
// `is_copy`: a copy that the consumer may write to. Only of host memory.
#pragma once

#include "tools/gpu/dlpack.h"
#include "tools/gpu/leases.h"

#include <memory>

namespace stfs {

// Throws Error kUsage where a copy cannot be made.
DLManagedTensorVersioned* export_dlpack(std::shared_ptr<const LeasedTensor> tensor, bool is_copy);

// For consumers older than DLPack 1.0. Throws Error kUsage for read-only memory too: that struct
// cannot say so (DLPack's Python specification asks for a refusal).
DLManagedTensor* export_dlpack_unversioned(std::shared_ptr<const LeasedTensor> tensor,
                                           bool is_copy);

}  // namespace stfs
