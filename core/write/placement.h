// Where tensors lie in a new safetensors file so that it can share blocks with the files of its
// source: a block can be shared where a tensor's offset is the source's modulo the size of a block
// (FICLONERANGE, ioctl_ficlonerange(2)).
//
// Thread safety: pure functions.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/written.h"

#include <cstdint>
#include <span>
#include <vector>

namespace stfs {

struct Placement {
  std::vector<std::uint32_t> tensors;  // in the order of their bytes
  std::uint64_t phase = 0;             // where the data begin in the file, modulo kShareBlock
  std::uint64_t shareable = 0;         // bytes
};

// The placement that shares most: the source's order where its data lie in one piece, else the
// tensors of whole blocks first that lie at the commonest phase.
Placement placement_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors);

}  // namespace stfs
