// Reads a checkpoint once, all its bytes, and gathers what its report shows.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/report/report.h"
#include "core/values/pass.h"

#include <span>
#include <string>

namespace stfs {

// Fills `report` for `checkpoint`; with `against`, also with how the two differ. Options: the
// threads work on several tensors at a time or on one large one; progress counts bytes of both
// checkpoints. Returns 0 or EINTR soon after `stop` was set. A tensor that cannot be read has its
// `failure` and a finding; the others are shown. Memory: a few MiB for each thread and a few KiB
// for each tensor.
int collect_report(const Checkpoint& checkpoint, const Checkpoint* against,
                   std::span<const std::string> sources, const PassOptions& options,
                   Report& report);

}  // namespace stfs
