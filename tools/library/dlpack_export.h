// A part of a tensor as DLPack's structs, for array libraries: private memory that the consumer
// owns and may write to, until it calls the deleter, on any thread.
#pragma once

#include "core/base/dlpack.h"
#include "tools/library/opened.h"

namespace stfs {

// Throws Error kUsage for a type that DLPack lacks; with `is_bytes` it is U8 of one dimension.
DLManagedTensorVersioned* export_dlpack(Opened& opened, const PartOfTensor& part, bool is_bytes);
// For consumers older than DLPack 1.0.
DLManagedTensor* export_dlpack_unversioned(Opened& opened, const PartOfTensor& part, bool is_bytes);

}  // namespace stfs
