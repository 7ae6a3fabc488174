// What the recipes of an item read: open sources, of the versions that its request names.
//
// Thread safety: a value. Lifetime: what it points to outlives the recipes.
#pragma once

#include "core/checkpoint/mounted.h"
#include "core/source/source.h"
#include "core/stored/tensor_list.h"

namespace stfs::gpu {

struct OpenItem {
  const Source* source = nullptr;  // of a stored tensor: ItemRequest::path
  // Of a computed one: Computation::checkpoint.
  const TensorList* list = nullptr;
  const Identities* identities = nullptr;
};

}  // namespace stfs::gpu
