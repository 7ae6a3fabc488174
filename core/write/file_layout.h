// Chooses where tensors are placed in a new safetensors file, so that the file can share blocks
// with the files of its source. A block can be shared if a tensor has the same offset in both files
// modulo the size of a block (FICLONERANGE, ioctl_ficlonerange(2)).
//
// Thread safety: pure functions.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/write_content.h"

#include <cstdint>
#include <span>
#include <vector>

namespace stfs {

struct FileLayout {
  std::vector<std::uint32_t> tensors;  // in the order of their bytes
  std::uint64_t phase = 0;             // where the data begins in the file, modulo kShareBlock
  std::uint64_t shareable = 0;         // bytes that can be shared
};

// Returns the placement that shares the most bytes. It either keeps the source's order, which is
// best if the data is contiguous there, or it puts first the tensors that consist of whole blocks
// and have the most common phase.
FileLayout placement_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors);

}  // namespace stfs
