#include "core/format/header.h"

#include <algorithm>

namespace stfs {

void Metadata::add(std::string_view key, std::string_view value) {
  entries_.push_back({text_.size(), static_cast<std::uint32_t>(key.size()),
                      static_cast<std::uint32_t>(value.size())});
  (text_ += key) += value;
}

void Metadata::sort() {
  const auto key_of = [this](const Lengths& entry) {
    return std::string_view(text_).substr(entry.begin, entry.key);
  };
  if (!std::ranges::is_sorted(entries_, {}, key_of)) {
    std::ranges::sort(entries_, [&](const Lengths& a, const Lengths& b) {
      return std::pair(key_of(a), a.begin) < std::pair(key_of(b), b.begin);
    });
  }
}

}  // namespace stfs
