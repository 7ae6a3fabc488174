// The open sources from which the recipes of an item read. They have the versions that the item's
// request names.
//
// Thread safety: a value. Lifetime: the objects that it points to must outlive the recipes.
#pragma once

#include "core/checkpoint/mount_source.h"
#include "core/source/source.h"
#include "core/stored/tensor_list.h"

namespace stfs::gpu {

struct OpenItem {
  const Source* source = nullptr;  // for a stored tensor: ItemRequest::path
  // For a computed tensor: the list of Computation::checkpoint and its identities.
  const TensorList* list = nullptr;
  const Identities* identities = nullptr;
};

}  // namespace stfs::gpu
