// The names in a directory whose files stand in a list. A name has the number in which it was
// added.
//
// Thread safety: const members, once sort() was called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

class NameList {
 public:
  void add(std::string_view name);
  void sort();  // when all have been added
  std::size_t size() const { return entries_.size(); }

  std::optional<std::uint32_t> find(std::string_view name) const;  // its number

  struct Entry {
    std::uint32_t number;
    std::string_view name;
  };
  // In the bytewise order of the names; `position` < size().
  Entry at(std::size_t position) const {
    return {entries_[position].number, text(entries_[position])};
  }

 private:
  struct Name {
    std::uint64_t begin;
    std::uint32_t length;
    std::uint32_t number;
  };
  std::string_view text(const Name& name) const {
    return std::string_view(names_).substr(name.begin, name.length);
  }

  std::string names_;  // arena: `__metadata__` may have millions of keys
  std::vector<Name> entries_;
};

}  // namespace stfs
