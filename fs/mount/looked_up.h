// Looked-up names: slices and subsets, which exist because a LOOKUP named them. A record lives
// while the kernel counts lookups of its name. With a ledger, records outlive the process.
//
// Readers may look up any number of names. The kernel keeps them while it has memory, and only its
// FORGET ends a record.
//
// Thread safety: all members. A Name from find() stays valid until its last lookup is forgotten;
// the kernel forgets none while a request for it is under way.
#pragma once

#include "fs/mount/ledger.h"

#include <cstdint>
#include <functional>
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
    std::uint32_t tensor;    // of the slice; 0 for a subset
    std::string expression;  // of the slice, or the glob of the subset
    std::uint64_t size;      // of the file, in bytes
    std::uint64_t number;    // of the node
    std::uint64_t lookups;
  };

  // Writes all changes to the ledger, which must outlive this; null without a supervisor.
  explicit LookedUpNames(Ledger* ledger = nullptr) : ledger_(ledger) {}

  // Reads the names of an earlier process from the ledger; call it first.
  void restore();

  // Counts a lookup of a name and returns its number; nullopt if `size` returns nullopt. For a new
  // name it calls `size`, without a lock, for the file's size in bytes: nullopt if there is no such
  // file. Two threads may call it for the same name. Throws std::bad_alloc.
  using Size = std::function<std::optional<std::uint64_t>()>;
  std::optional<std::uint64_t> look_up(std::uint8_t view, std::uint32_t tensor,
                                       std::string_view expression, const Size& size);

  const Name* find(std::uint64_t number) const;

  void forget(std::uint64_t number, std::uint64_t lookups);

  std::size_t size() const;

 private:
  struct Record : Name {
    std::uint32_t slot = 0;  // in the ledger
  };
  struct Hash {
    std::size_t operator()(const Record* record) const;
  };
  struct Equal {
    bool operator()(const Record* a, const Record* b) const;
  };

  void insert(Record fresh);
  template <class Table>
  static void shrink(Table& table);

  Ledger* ledger_;
  mutable std::mutex mutex_;
  std::uint64_t next_ = 0;   // number of the next new name; never reused
  std::uint64_t freed_ = 0;  // names forgotten since the last malloc_trim
  std::unordered_map<std::uint64_t, Record> by_number_;
  std::unordered_set<Record*, Hash, Equal> by_name_;
};

}  // namespace stfs
