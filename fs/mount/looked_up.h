// Looked-up names: slices and subsets, which exist because a LOOKUP named them. A record lives
// while the kernel counts lookups of its name. With a ledger, records outlive the process.
//
// Readers may look up any number of names, and the kernel keeps them while it has memory. Beyond a
// bound we ask the kernel to drop names, least recently looked up first. Only the kernel's FORGET
// ends a record.
//
// The states of a name:
//
//                 look_up          take_surplus
//   (no record) ──────────► idle ──────────────► asked
//                           │ ▲ ◄──────────────── │
//                           │ │  look_up, again   │
//                      open │ │ release           │ open
//                           ▼ │                   │
//                           open ◄────────────────┘
//
//   forget, when the count of lookups becomes 0: from each state to (no record)
//
//   transition     made by
//   look_up        a LOOKUP; an idle name becomes the last to be dropped
//   open, release  an OPEN; the RELEASE of the last one
//   take_surplus   the thread of FileSystem that asks the kernel (FUSE_NOTIFY_PRUNE, Linux 6.18)
//   again          a LOOKUP of a new name while more names are asked than the bound: the kernel
//                  has kept them, because a process holds them without an OPEN that we have counted
//                  (O_PATH, or an OPEN that an earlier worker answered). Each new name moves one
//   forget         the FORGET that makes the count of lookups 0
//
// We do not ask the kernel to drop an open name: it would keep the name and not tell when it is
// closed. The kernel sends RELEASE after all reads of the file are answered, so a drop never waits
// for a read.
//
// Thread safety: all members. A Name from find() stays valid until its last lookup is forgotten;
// the kernel forgets none while a request for it is under way.
#pragma once

#include "fs/mount/ledger.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace stfs {

class LookedUpNames {
 public:
  static constexpr std::size_t kBound = 65'536;  // names

  struct Name {
    std::uint8_t view;
    std::uint32_t tensor;    // of the slice; 0 for a subset
    std::string expression;  // of the slice, or the glob of the subset
    std::uint64_t size;      // of the file, in bytes
    std::uint64_t number;    // of the node
    std::uint64_t lookups;
  };

  // Writes all changes to the ledger, which must outlive this; null without a supervisor.
  explicit LookedUpNames(Ledger* ledger = nullptr, std::size_t bound = kBound)
      : ledger_(ledger), bound_(bound) {}

  // Reads the names of an earlier process from the ledger; call it first. None counts as open.
  void restore();

  // Counts a lookup of a name and returns its number; nullopt if `size` returns nullopt. For a new
  // name it calls `size`, without a lock, for the file's size in bytes: nullopt if there is no such
  // file. Two threads may call it for the same name. Throws std::bad_alloc.
  using Size = std::function<std::optional<std::uint64_t>()>;
  std::optional<std::uint64_t> look_up(std::uint8_t view, std::uint32_t tensor,
                                       std::string_view expression, const Size& size);

  const Name* find(std::uint64_t number) const;

  void open(std::uint64_t number);
  void release(std::uint64_t number);
  void forget(std::uint64_t number, std::uint64_t lookups);

  // The next name for the kernel to drop. take_surplus() returns nullopt within the bound;
  // wait_for_surplus() waits until the bound is exceeded, and returns nullopt after stop().
  struct Surplus {
    std::uint8_t view;
    std::uint64_t number;
  };
  std::optional<Surplus> take_surplus();
  std::optional<Surplus> wait_for_surplus();
  void stop();

  std::size_t size() const;

 private:
  struct Record;
  using List = std::list<Record>;
  struct Record : Name {
    std::uint64_t opens = 0;
    bool is_asked = false;   // the kernel was asked to drop it
    std::uint32_t slot = 0;  // in the ledger
    List::iterator self{};
  };
  struct Hash {
    std::size_t operator()(const Record* record) const;
  };
  struct Equal {
    bool operator()(const Record* a, const Record* b) const;
  };

  List& list_of(const Record& record);
  template <class Change>
  void change(Record& record, const Change& change);
  void insert(List& fresh);
  bool has_surplus() const;
  Surplus take();
  template <class Table>
  static void shrink(Table& table);

  Ledger* ledger_;
  const std::size_t bound_;
  mutable std::mutex mutex_;
  std::condition_variable surplus_;
  bool stopping_ = false;
  std::uint64_t next_ = 0;    // number of the next new name; never reused
  std::uint64_t freed_ = 0;   // names forgotten since the last malloc_trim
  List idle_, open_, asked_;  // by state, in the order of arrival
  std::unordered_map<std::uint64_t, Record*> by_number_;
  std::unordered_set<Record*, Hash, Equal> by_name_;
};

}  // namespace stfs
