// Names that exist because somebody asked for them: slices and subsets. A record is kept while the
// kernel counts lookups of its name. With a ledger, records outlive the process.
//
// Readers may ask for any number of names, and the kernel forgets none while it has memory. So
// there is a bound: beyond it the kernel is asked to drop names, first those that were looked up
// longest ago. The kernel's FORGET alone ends a record.
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
//   transition     who makes it
//   look_up        a LOOKUP of the kernel; an idle name becomes the last to be dropped
//   open, release  an OPEN; the RELEASE that ends the last one
//   take_surplus   the thread of FileSystem that asks the kernel (FUSE_NOTIFY_PRUNE, Linux 6.18)
//   again          a LOOKUP of a new name while more than the bound are asked: the kernel has kept
//                  them, since somebody held them without an OPEN that this process has counted
//                  (O_PATH, or an OPEN that an earlier worker answered). One name for each new one
//   forget         a FORGET
//
// The kernel drops no name that is open, and is not asked to: it would not tell when it is closed.
// A RELEASE comes when all reads of the file have been answered, so that the kernel does not have
// to wait for one either.
//
// Thread safety: all members. A name that find() returned stays until its last lookup is forgotten,
// which the kernel does not do while a request for it is under way.
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
    std::uint32_t tensor;    // whose slice it is; 0 for a subset
    std::string expression;  // of the slice, or the glob of the subset
    std::uint64_t size;      // of the file, in bytes
    std::uint64_t number;
    std::uint64_t lookups;
  };

  // The ledger, if there is one, is kept up to date and outlives this.
  explicit LookedUpNames(Ledger* ledger = nullptr, std::size_t bound = kBound)
      : ledger_(ledger), bound_(bound) {}

  // Takes back the names that an earlier process left in the ledger, before anything else. None of
  // them counts as open.
  void restore();

  // The number of a name, with one more lookup. `size` gives the size of a new name's file, or
  // nothing when there is no such file; it is called without a lock and its result may be thrown
  // away. Throws std::bad_alloc.
  using Size = std::function<std::optional<std::uint64_t>()>;
  std::optional<std::uint64_t> look_up(std::uint8_t view, std::uint32_t tensor,
                                       std::string_view expression, const Size& size);

  const Name* find(std::uint64_t number) const;

  void open(std::uint64_t number);
  void release(std::uint64_t number);
  void forget(std::uint64_t number, std::uint64_t lookups);

  // The name that the kernel should drop next; none while there are not too many. The second waits
  // until there are, and gives none after stop().
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
    bool is_asked = false;
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
  void keep(List& fresh);
  bool has_surplus() const;
  Surplus take();
  template <class Table>
  static void shrink(Table& table);

  Ledger* ledger_;
  const std::size_t bound_;
  mutable std::mutex mutex_;
  std::condition_variable surplus_;
  bool stopping_ = false;
  std::uint64_t next_ = 0;    // numbers are never used again
  std::uint64_t freed_ = 0;   // names since their memory was last given back
  List idle_, open_, asked_;  // by state; the last that came there at the end
  std::unordered_map<std::uint64_t, Record*> by_number_;
  std::unordered_set<Record*, Hash, Equal> by_name_;
};

}  // namespace stfs
