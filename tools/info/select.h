// Finds the tensor that a command line names.
#pragma once

#include "core/checkpoint/checkpoint.h"

#include <string>

namespace stfs {

// The tensor with this name, borrowed from the checkpoint. `source` begins the message of the Error
// kUsage that it throws for any other name.
Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& name);

}  // namespace stfs
