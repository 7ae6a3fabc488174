// Names that exist because somebody asked for them: slices and subsets. They are kept while the
// kernel holds them, by its count of lookups, and forgotten when it forgets them. With a ledger
// they outlive the process.
//
// Thread safety: all members. A name that find() returned stays until its last lookup is forgotten,
// which the kernel does not do while a request for it is under way.
#pragma once

#include "core/content.h"
#include "fs/ledger.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace stfs {

class LookedUpNames {
 public:
  struct Name {
    std::uint8_t view;
    std::uint32_t tensor;            // whose slice it is; 0 for a subset
    std::string expression;          // of the slice, or the glob of the subset
    std::optional<Content> content;  // of a subset
    std::uint64_t number;
    std::uint64_t lookups;
    std::uint32_t place = 0;  // in the ledger
  };

  // The ledger, if there is one, is kept up to date and outlives this.
  explicit LookedUpNames(Ledger* ledger = nullptr) : ledger_(ledger) {}

  // Takes back the names that an earlier process left in the ledger, before anything else. `make`
  // makes the content of each.
  void restore(const std::function<std::optional<Content>(const Name& name)>& make);

  // The number of a name, made when it is new, with one more lookup. `make` makes the content of a
  // new name; it is called without a lock and its result may be thrown away. Throws std::bad_alloc.
  std::uint64_t look_up(std::uint8_t view, std::uint32_t tensor, std::string_view expression,
                        const std::function<std::optional<Content>()>& make);

  const Name* find(std::uint64_t number) const;

  void forget(std::uint64_t number, std::uint64_t lookups);

  std::size_t size() const;

 private:
  struct Hash {
    std::size_t operator()(const Name* name) const;
  };
  struct Equal {
    bool operator()(const Name* a, const Name* b) const;
  };

  void keep(std::unique_ptr<Name> name);
  template <class Table>
  static void shrink(Table& table);

  Ledger* ledger_;
  mutable std::mutex mutex_;
  std::uint64_t next_ = 0;   // numbers are never used again
  std::uint64_t freed_ = 0;  // names since their memory was last given back
  std::unordered_map<std::uint64_t, std::unique_ptr<Name>> by_number_;
  std::unordered_set<Name*, Hash, Equal> by_name_;
};

}  // namespace stfs
