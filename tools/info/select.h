// Which tensor of a checkpoint a command line means.
#pragma once

#include "core/checkpoint/checkpoint.h"

#include <string>

namespace stfs {

// The tensor with this name. Throws Error kUsage when there is none.
Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& name);

}  // namespace stfs
