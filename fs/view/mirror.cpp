#include "fs/view/mirror.h"

namespace stfs {
namespace {

// Returns the suffix in the form in which a directory's name shows it.
std::string escaped(std::string_view suffix) { return "%2E" + std::string(suffix.substr(1)); }

// Returns the name in the tree of a directory with this mirrored name, or nullopt if no directory
// can have it.
std::optional<std::string> unescape_suffix(std::string_view name, std::string_view suffix) {
  if (suffix.empty()) return std::string(name);
  if (name.ends_with(suffix)) return std::nullopt;  // a directory's name shows the suffix escaped
  const auto before = without_suffix(name, escaped(suffix));
  return before ? std::string(*before) + std::string(suffix) : std::string(name);
}

}  // namespace

std::optional<std::string_view> without_suffix(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

std::optional<PathTree::Entry> find_mirrored(const PathTree& tree, std::uint32_t directory,
                                             std::string_view name, std::string_view suffix) {
  if (const auto file = without_suffix(name, suffix)) {
    const auto entry = tree.lookup(directory, *file);
    if (entry && !entry->is_directory) return entry;
  }
  if (const auto below = unescape_suffix(name, suffix)) {
    const auto entry = tree.lookup(directory, *below);
    if (entry && entry->is_directory) return entry;
  }
  return std::nullopt;
}

std::string mirrored_name(const PathTree::Entry& entry, std::string_view suffix) {
  if (!entry.is_directory) return std::string(entry.component) + std::string(suffix);
  const auto before = without_suffix(entry.component, suffix);
  if (suffix.empty() || !before) return std::string(entry.component);
  return std::string(*before) + escaped(suffix);
}

}  // namespace stfs
