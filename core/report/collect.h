// Reads a checkpoint once, all its bytes, and collects the data that its report shows.
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

// Fills `report` with the data of `checkpoint` and, if `against` is not null, with the differences
// between the two. The threads of `options` work on several tensors at a time, or on one large
// tensor. Progress counts the bytes of both checkpoints. Returns 0, or EINTR soon after `stop` was
// set. A tensor that cannot be read gets a `failure` and a finding; the others are shown. Uses a
// few MiB of memory per thread and a few KiB per tensor.
int collect_report(const Checkpoint& checkpoint, const Checkpoint* against,
                   std::span<const std::string> sources, const PassOptions& options,
                   Report& report);

// Returns the name of a checkpoint without path components and endings that only say that it is a
// checkpoint: "/models/llama/model.safetensors" -> "llama".
std::string name_of_source(std::string_view path);

// Calls `work` once for each item, for several items at the same time, with the item and the number
// of threads that this call may use. When fewer items than threads are left, the remaining calls
// share the free threads. Ends early after a stop. Throws the first exception of `work`.
void for_each_of(std::span<const std::uint32_t> items, const PassOptions& options,
                 const std::function<void(std::uint32_t, unsigned)>& work);

}  // namespace stfs
