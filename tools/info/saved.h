// What `extract` and `edit` do with a Plan: tell what would be written, or write it.
//
// Thread safety: one thread calls it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "tools/info/verbs.h"

#include <cstdint>
#include <span>

namespace stfs {

// Writes these tensors to Arguments::output, whole or not at all, and returns the exit status.
// Throws Error as Plan and Output do.
int save(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
         const Arguments& arguments, const Sources& sources);

}  // namespace stfs
