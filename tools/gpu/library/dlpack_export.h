// Exports a leased tensor as a struct of DLPack, for array libraries. The consumer owns the struct,
// which keeps the tensor until the consumer calls the deleter, on any thread. Memory that is not a
// copy is read-only on every device, because other processes see the same bytes.
#pragma once

#include "core/base/dlpack.h"
#include "tools/gpu/library/tensor_leases.h"

#include <memory>

namespace stfs::gpu {

struct ExportAs {
  bool is_copy = false;   // a private writable copy; host memory only
  bool is_bytes = false;  // one-dimensional U8, whatever the type of the tensor
};

// Throws Error kUsage for a copy of device memory, and if DLPack does not have the type.
DLManagedTensorVersioned* export_dlpack(const std::shared_ptr<const LeasedTensor>& tensor,
                                        ExportAs as);

// The same for consumers older than DLPack 1.0. This struct has no read-only flag, so DLPack's
// Python specification requires a refusal: throws Error kUsage for host memory without a copy.
// Device memory is exported, because GPU array libraries have no read-only arrays.
DLManagedTensor* export_dlpack_unversioned(const std::shared_ptr<const LeasedTensor>& tensor,
                                           ExportAs as);

}  // namespace stfs::gpu
