// Finds the tensors that a user names. If there are none, makes a message that suggests what the
// user may have meant.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// Returns the number of the tensor with this name. If there is none, returns the numbers,
// ascending, of the tensors that match `name` as a glob (Checkpoint::match), which may be none.
std::vector<std::uint32_t> select(const Checkpoint& checkpoint, const std::string& name);

// Returns the message for a name for which select() finds no tensor, such as `tensor "lm_head": not
// in the checkpoint (did you mean "lm_head.weight"?)`, `tensor "up_proj": not in the checkpoint
// ('*up_proj*' matches 48)`, or `"layers.9.*": matches no tensor`.
std::string no_such_tensor(const Checkpoint& checkpoint, const std::string& name);

// Returns the most similar name in the checkpoint: one that differs by a few characters, or that
// begins or ends with `name`. Returns "" if no name is similar. Borrows from the checkpoint.
std::string_view similar_name(const Checkpoint& checkpoint, std::string_view name);

}  // namespace stfs
