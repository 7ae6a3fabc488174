// Looked-up names: the names of slices and subsets, which exist because a LOOKUP request named
// them. A record lives while the kernel counts lookups of its name. With a ledger, records outlive
// the process.
//
// Readers may look up any number of names. The kernel remembers them while it has memory, and only
// its FORGET request removes a record.
//
// Thread safety: all members may be called from any thread. A Name from find() is valid until its
// last lookup is forgotten; the kernel forgets no name while a request for it is in flight.
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
    std::uint32_t tensor;    // tensor of the slice; 0 for a subset
    std::string expression;  // the slice's expression, or the subset's glob
    std::uint64_t size;      // size of the file in bytes
    std::uint64_t number;    // number of the node
    std::uint64_t lookups;
  };

  // Writes all changes to the ledger, which must outlive this. Null without a supervisor.
  explicit LookedUpNames(Ledger* ledger = nullptr) : ledger_(ledger) {}

  // Reads the names of an earlier process from the ledger. Must be called first.
  void restore();

  // Counts a lookup of a name and returns its number. For a new name it first calls `size`, without
  // a lock, for the file's size in bytes; if the file does not exist, `size` returns nullopt, and
  // so does this. Two threads may call `size` for the same name. Throws std::bad_alloc.
  using Size = std::function<std::optional<std::uint64_t>()>;
  std::optional<std::uint64_t> look_up(std::uint8_t view, std::uint32_t tensor,
                                       std::string_view expression, const Size& size);

  // Returns the name with this number, or nullptr.
  const Name* find(std::uint64_t number) const;

  // Subtracts `lookups` from the name's count of lookups. Removes the name when the count is 0.
  void forget(std::uint64_t number, std::uint64_t lookups);

  std::size_t size() const;

 private:
  struct Record : Name {
    std::uint32_t slot = 0;  // the record's slot in the ledger
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
  std::uint64_t next_ = 0;   // the number of the next new name; numbers are never reused
  std::uint64_t freed_ = 0;  // names removed since the last malloc_trim()
  std::unordered_map<std::uint64_t, Record> by_number_;
  std::unordered_set<Record*, Hash, Equal> by_name_;
};

}  // namespace stfs
