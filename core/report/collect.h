// Reads a checkpoint once, all its bytes, and gathers what its report shows.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/report/report.h"
#include "core/values/pass.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// Fills `report` for `checkpoint`; with `against`, also with how the two differ. Options: the
// threads work on several tensors at a time or on one large one; progress counts bytes of both
// checkpoints. Returns 0 or EINTR soon after `stop` was set. A tensor that cannot be read has its
// `failure` and a finding; the others are shown. Memory: a few MiB for each thread and a few KiB
// for each tensor.
int collect_report(const Checkpoint& checkpoint, const Checkpoint* against,
                   std::span<const std::string> sources, const PassOptions& options,
                   Report& report);

// Without what says only that it is a checkpoint: "/models/llama/model.safetensors" -> "llama".
std::string name_of_source(std::string_view path);

// Calls `work` for each item once, for several at a time, with the number of threads that it may
// use: the last ones share those that find no other item. Ends early after a stop. Throws the first
// exception of `work`.
void for_each_of(std::span<const std::uint32_t> items, const PassOptions& options,
                 const std::function<void(std::uint32_t, unsigned)>& work);

}  // namespace stfs
