// Which tensors of a checkpoint a command line means.
#pragma once

#include "core/checkpoint.h"
#include "tools/verbs.h"

#include <span>
#include <string>
#include <vector>

namespace stfs {

// The numbers of the tensors whose names match one of the globs, as fnmatch(3) without flags
// matches them (`*` crosses `/` and `.`); all of them when there are none. In the order of the
// bytes.
std::vector<std::uint32_t> select_tensors(const Checkpoint& checkpoint,
                                          std::span<const std::string> globs);

// The tensor with this name. Throws Error kUsage when there is none.
Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& name);

}  // namespace stfs
