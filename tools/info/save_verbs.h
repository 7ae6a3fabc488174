// Carries out a Plan for `extract` and `edit`: writes the files, or only prints what would be
// written.
//
// Thread safety: one thread at a time.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "tools/info/verbs.h"

#include <cstdint>
#include <span>

namespace stfs {

// Writes these tensors to Arguments::output, completely or not at all, and returns the exit status.
// Throws Error like Plan and Output.
int save(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
         const Arguments& arguments, const Sources& sources);

}  // namespace stfs
