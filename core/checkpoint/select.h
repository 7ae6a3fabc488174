// Finds the tensors that a user names. What was asked for and is not there is an error that says
// what may have been meant.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// The numbers, ascending, of the tensors that `name` means: the tensor with that name, else those
// that match it as a glob (Checkpoint::match). Empty when there are none.
std::vector<std::uint32_t> select(const Checkpoint& checkpoint, const std::string& name);

// The message for a name that means no tensor: `tensor "lm_head": not in the checkpoint (did you
// mean "lm_head.weight"?)`, `tensor "up_proj": not in the checkpoint ('*up_proj*' matches 48)`, or
// `"layers.9.*": matches no tensor`.
std::string no_such_tensor(const Checkpoint& checkpoint, const std::string& name);

// The name in the checkpoint that is most like `name`: it has `name` at its beginning or its end,
// or differs by a few characters. Empty when none is like it.
std::string_view similar_name(const Checkpoint& checkpoint, std::string_view name);

}  // namespace stfs
