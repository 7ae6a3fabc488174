#include "fs/view/name_list.h"

#include <algorithm>

namespace stfs {

void NameList::add(std::string_view name) {
  entries_.push_back({names_.size(), static_cast<std::uint32_t>(name.size()),
                      static_cast<std::uint32_t>(entries_.size())});
  names_ += name;
}

void NameList::sort() {
  const auto text_of = [this](const Name& name) { return text(name); };
  if (!std::ranges::is_sorted(entries_, {}, text_of)) std::ranges::sort(entries_, {}, text_of);
}

std::optional<std::uint32_t> NameList::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries_, name, {},
                                              [this](const Name& entry) { return text(entry); });
  if (found == entries_.end() || text(*found) != name) return std::nullopt;
  return found->number;
}

}  // namespace stfs
