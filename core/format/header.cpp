#include "core/format/header.h"

#include "core/base/sort.h"

#include <algorithm>
#include <type_traits>

namespace stfs {

void Metadata::add(std::string_view key, std::string_view text) {
  entries_.push_back({text_.size(), static_cast<std::uint32_t>(key.size()),
                      static_cast<std::uint32_t>(text.size())});
  (text_ += key) += text;
}

void Metadata::add(std::string_view key, std::string_view text, const MetadataValue& value) {
  add(key, text);
  values_.push_back(value);
}

std::vector<std::string> Metadata::keys() const {
  std::vector<std::string> keys;
  keys.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) keys.emplace_back((*this)[i].first);
  return keys;
}

std::size_t Metadata::lower_bound(std::string_view key) const {
  std::size_t begin = 0;
  std::size_t end = size();
  while (begin < end) {
    const std::size_t middle = begin + (end - begin) / 2;
    if ((*this)[middle].first < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

std::optional<std::size_t> Metadata::find(std::string_view key) const {
  const std::size_t i = lower_bound(key);
  return i < size() && (*this)[i].first == key ? std::optional(i) : std::nullopt;
}

void Metadata::sort() {
  const auto key_of = [this](std::size_t i) { return (*this)[i].first; };
  const std::vector<std::uint32_t> order = sorted_order(size(), key_of).order;
  const auto in_order = [&order](const auto& items) {
    std::remove_cvref_t<decltype(items)> sorted;
    sorted.reserve(items.size());
    for (const std::uint32_t i : order) sorted.push_back(items[i]);
    return sorted;
  };
  if (std::ranges::is_sorted(order)) return;
  entries_ = in_order(entries_);
  if (!values_.empty()) values_ = in_order(values_);
}

}  // namespace stfs
