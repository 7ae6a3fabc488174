// A part of a tensor as a struct of DLPack, for array libraries. The consumer owns the memory,
// which is private and writable, until it calls the deleter, on any thread.
#pragma once

#include "core/base/dlpack.h"
#include "tools/library/checkpoint_handle.h"

namespace stfs {

// With `is_bytes` the type is U8 and the shape has one dimension. Throws Error kUsage if DLPack
// does not have the type of the part, and what Opened::map_private() throws.
DLManagedTensorVersioned* export_dlpack(Opened& opened, const PartOfTensor& part, bool is_bytes);
// The same for consumers older than DLPack 1.0.
DLManagedTensor* export_dlpack_unversioned(Opened& opened, const PartOfTensor& part, bool is_bytes);

}  // namespace stfs
