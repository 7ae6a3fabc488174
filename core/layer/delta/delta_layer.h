// The layer `delta`: a checkpoint after the updates of a chain of deltas.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <optional>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::string_view kDeltaOption = "delta";

// `below` is the checkpoint that the chain of `version` stands on, and has sort_names(). Checks the
// smallest patched tensor of each link. Throws Error kDelta: a chain that is none, tensors that the
// base lacks, another base.
TensorList apply_delta(TensorList below, const std::string& version, Sources& sources);

// A SOURCE that is a delta means the full checkpoint that its chain reaches, with the layer: sets
// `source` to that checkpoint, and returns the layer's argument. nullopt: the source is none. Throws
// Error kDelta for a chain that reaches none, and for one shard of a delta.
std::optional<std::string> delta_as_source(std::string& source, Sources& sources);

// The argument with an absolute path, or a pinned URL.
std::string resolved_delta(const std::string& argument, Sources& sources);

}  // namespace stfs
