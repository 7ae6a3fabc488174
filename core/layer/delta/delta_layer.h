// The layer `delta`: shows a checkpoint after the updates of a chain of deltas.
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

// Applies the chain that ends in `version` to `below`, which must be the checkpoint that the chain
// is based on and have sorted names (TensorList::sort_names()). For each link, checks the smallest
// tensor that it patches. Throws Error kDelta if `version` is not a delta, if the base lacks a
// tensor that the chain changes, or if `below` is another checkpoint than the base.
TensorList apply_delta(TensorList below, const std::string& version, Sources& sources);

// If the SOURCE is a delta, sets `source` to the full checkpoint at the beginning of its chain, and
// returns the argument of the layer that shows the delta. Returns nullopt for any other source.
// Throws Error kDelta for a chain without a full checkpoint, and for a single shard of a delta.
std::optional<std::string> delta_as_source(std::string& source, Sources& sources);

// Returns the chain of a SOURCE that is a delta, or nullopt for any other source. Throws Error
// kDelta for a single shard of a delta, and the errors of delta_chain().
std::optional<DeltaChain> chain_at(const std::string& source, Sources& sources);

// Throws Error kDelta if the list contains a file of frames, because the frames of a delta must not
// be shown as tensors. Such a file is recognised by the checksums that it has under the names of
// its tensors.
void refuse_frames(const TensorList& list);

// The extent of a link's changes.
struct DeltaFacts {
  std::uint64_t tensors = 0;  // the number of tensors that it changes
  std::uint64_t bytes = 0;    // the size of its frames
};
// Reads the headers of a link's files. Throws Error.
DeltaFacts facts_of(const DeltaVersion& link, Sources& sources);

// Returns the argument with an absolute path, or with a pinned URL.
std::string resolved_delta(const std::string& argument, Sources& sources);

}  // namespace stfs
