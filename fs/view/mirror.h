// The names of a tree that is mirrored with a suffix at the end of each file's name. A directory
// whose own name ends in the suffix has the suffix's dot written as %2E, so that it cannot have the
// name of a file beside it.
#pragma once

#include "core/checkpoint/tree.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

// `name` without the suffix that it must end in.
std::optional<std::string_view> without_suffix(std::string_view name, std::string_view suffix);

// What a directory of the tree holds under `name`.
std::optional<PathTree::Entry> find_mirrored(const PathTree& tree, std::uint32_t directory,
                                             std::string_view name, std::string_view suffix);

// The name of what stands in a directory of the tree.
std::string mirrored_name(const PathTree::Entry& entry, std::string_view suffix);

}  // namespace stfs
