// Names in a view that mirrors the checkpoint's tree and adds a suffix to each file's name. If a
// directory's own name ends in the suffix, its dot becomes %2E: no file beside it has that name.
//
// Thread safety: free functions without state.
#pragma once

#include "core/checkpoint/tree.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

// `name` without the suffix; nullopt if it does not end in it.
std::optional<std::string_view> without_suffix(std::string_view name, std::string_view suffix);

// Finds the entry of a directory by its mirrored name; nullopt if there is none.
std::optional<PathTree::Entry> find_mirrored(const PathTree& tree, std::uint32_t directory,
                                             std::string_view name, std::string_view suffix);

// The mirrored name of an entry of the tree.
std::string mirrored_name(const PathTree::Entry& entry, std::string_view suffix);

}  // namespace stfs
