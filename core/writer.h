// New safetensors files as recipes: some tensors of a checkpoint, in one file, nothing copied.
//
// The file is valid to the reference's rules and is the same whenever it is made of the same
// tensors:
// `__metadata__` first, sorted by key, then the tensors by the size of their elements, the largest
// first, so that each is aligned; among equals as they stood. The header is padded with spaces so
// that the data begins at a multiple of 4096 bytes, and a mapping of it at a page.
#pragma once

#include "core/checkpoint.h"
#include "core/content.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace stfs {

// The file with these tensors, by number. Nothing when its header would pass the format's limit of
// 100,000,000 bytes. The checkpoint must outlive it.
std::optional<Content> safetensors_file(const Checkpoint& checkpoint,
                                        std::vector<std::uint32_t> tensors);

}  // namespace stfs
