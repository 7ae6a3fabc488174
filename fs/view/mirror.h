// The names in a view that mirrors the checkpoint's tree and adds a suffix to the name of each
// file. If a directory's own name ends in the suffix, its dot becomes %2E, so that no file in the
// same directory has that name.
//
// Thread safety: free functions without state, safe to call from any thread.
#pragma once

#include "core/checkpoint/tree.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

// Returns `name` without the suffix, or nullopt if it does not end in the suffix. Borrows from
// `name`.
std::optional<std::string_view> without_suffix(std::string_view name, std::string_view suffix);

// Returns the entry of a directory with this mirrored name, or nullopt.
std::optional<PathTree::Entry> find_mirrored(const PathTree& tree, std::uint32_t directory,
                                             std::string_view name, std::string_view suffix);

// Returns the mirrored name of an entry of the tree.
std::string mirrored_name(const PathTree::Entry& entry, std::string_view suffix);

}  // namespace stfs
