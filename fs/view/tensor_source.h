// Where a tensor's bytes come from: the one place in which views ask.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"
#include "core/recipe/slice.h"

#include <ctime>

namespace stfs {

Content raw(const Tensor& tensor);
Content part(const Tensor& tensor, const Slice& slice);

int verify(const Tensor& tensor);         // 0, ESTALE when its source has changed, or an errno
timespec mtime_of(const Tensor& tensor);  // of its source

}  // namespace stfs
