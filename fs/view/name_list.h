// The file names of a flat directory. The first name added has number 0, the next 1, and so on.
//
// Thread safety: after sort() the const members may be called from any thread.
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
  void sort();  // call it once, after the last add() and before find() and at()
  std::size_t size() const { return entries_.size(); }

  // Returns the number of a name, or nullopt.
  std::optional<std::uint32_t> find(std::string_view name) const;

  struct Entry {
    std::uint32_t number;
    std::string_view name;
  };
  // Returns the entry at a position in the bytewise order; `position` < size(). The list owns the
  // name.
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

  std::string names_;  // one string for all names, because `__metadata__` may have millions of keys
  std::vector<Name> entries_;
};

}  // namespace stfs
