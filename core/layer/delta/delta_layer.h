// The layer `delta`: a checkpoint after the updates of a chain of deltas.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/layer/delta/version.h"
#include "core/remote/sources.h"
#include "core/stored/tensor_list.h"

#include <cstdint>
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
// `source` to that checkpoint, and returns the layer's argument. nullopt: the source is none.
// Throws Error kDelta for a chain that reaches none, and for one shard of a delta.
std::optional<std::string> delta_as_source(std::string& source, Sources& sources);

// The chain of a SOURCE that is a delta; nullopt: it is none. Throws Error kDelta for one shard of
// a delta, and as delta_chain() does.
std::optional<DeltaChain> chain_at(const std::string& source, Sources& sources);

// Nothing of a delta is shown as tensors. Throws Error kDelta for a list with a file of frames,
// which have checksums under their own names.
void refuse_frames(const TensorList& list);

// What a link of a chain holds.
struct DeltaFacts {
  std::uint64_t tensors = 0;  // that it changes
  std::uint64_t bytes = 0;    // of its frames
};
// Reads the headers. Throws Error.
DeltaFacts facts_of(const DeltaVersion& link, Sources& sources);

// The argument with an absolute path, or a pinned URL.
std::string resolved_delta(const std::string& argument, Sources& sources);

}  // namespace stfs
