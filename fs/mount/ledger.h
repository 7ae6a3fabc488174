// The state that one worker leaves to the next (supervisor.h): the names that the kernel remembers,
// the sources that have changed or failed, the ctimes and leases of local files, and the number of
// answered requests. The supervisor maps this memory before it forks, and all workers share it. A
// worker can be killed between any two instructions, so each record becomes valid by a single
// store.
//
// A name occupies one or more units of 64 bytes. Its record is live while its count of lookups is
// not 0. A freed record is reused for a name that needs the same number of units.
//
//   [ Head | a SourceRecord for each source | unit | unit | ... ]
//
// Thread safety: one worker uses the ledger at a time. In the worker, one thread at a time calls
// add(), count() and restore(), one at a time calls keep_failures(), and any thread calls the
// others. Lifetime: created before the first fork; must outlive all workers.
#pragma once

#include "core/source/local_file.h"
#include "core/source/source.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace stfs {

class Ledger {
 public:
  // The maximum length of a looked-up name, in bytes (NAME_MAX).
  static constexpr std::size_t kLongestName = 255;

  struct Name {
    std::uint8_t view;
    std::uint32_t tensor;
    std::string_view expression;  // at most kLongestName bytes
    std::uint64_t size;           // size of the file in bytes
    std::uint64_t number;         // number of the node
    std::uint64_t lookups;
  };

  // Reserves address space for `bytes` bytes of names; the kernel allocates pages on first use.
  // Throws Error kMountFailed if that fails.
  explicit Ledger(std::size_t sources, std::size_t bytes = std::size_t{1} << 30);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

  // Adds a name and returns its slot. Throws std::bad_alloc if the ledger is full.
  std::uint32_t add(const Name& name);
  // Sets the count of lookups of the name in a slot; 0 frees the slot.
  void count(std::uint32_t slot, std::uint64_t lookups);

  // Calls `take` for each live name, and rebuilds the list of free slots. A new worker calls it
  // first.
  void restore(const std::function<void(const Name& name, std::uint32_t slot)>& take);
  // Returns a number that is greater than the number of every name ever added.
  std::uint64_t next_number() const { return head_->next_number; }

  // Whether a source has changed, and whether that was logged. The source itself writes change()
  // (Source::share_change_flag()).
  std::atomic<bool>& change(std::size_t source) { return sources_[source].has_changed; }
  void mark_reported(std::size_t source) { sources_[source].is_reported = true; }
  bool is_reported(std::size_t source) const { return sources_[source].is_reported; }
  // The accepted version of a local file and the state of its lease. The file itself writes them
  // (LocalFile::share_state()).
  LocalFile::Standing& standing(std::size_t source) { return sources_[source].standing; }
  // Sets the failures of a source that are logged or about to be logged. Pass all of them: later
  // calls may only add failures or widen ranges.
  void keep_failures(std::size_t source, std::span<const Source::Failure> failures);
  std::span<const Source::Failure> failures(std::size_t source) const;

  void count_answer() { head_->answers.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t answers() const { return head_->answers; }

 private:
  struct Head {
    std::atomic<std::uint64_t> next_number;
    std::atomic<std::uint64_t> units;  // number of units that are in use or freed
    alignas(64) std::atomic<std::uint64_t> answers;
  };
  struct Record {
    std::atomic<std::uint64_t> lookups;  // written last
    std::uint64_t number;                // in a free record: the next free slot, as in free_
    std::uint64_t size;
    std::uint32_t tensor;
    std::uint8_t view;
    std::uint8_t length;  // length of the expression, which follows
  };
  struct SourceRecord {
    std::atomic<bool> has_changed, is_reported;
    LocalFile::Standing standing;
    std::atomic<std::size_t> failed;  // number of valid failures; written last
    std::array<Source::Failure, Source::kMaxFailures> failures;
  };
  static constexpr std::size_t kUnit = 64;
  static constexpr std::size_t kText = 30;  // offset of the expression in a record
  static constexpr std::size_t kMaxUnits = (kText + kLongestName + kUnit - 1) / kUnit;

  static std::size_t units_for(std::size_t length) { return (kText + length + kUnit - 1) / kUnit; }
  std::byte* at(std::uint64_t slot) const { return units_ + slot * kUnit; }
  Record& record(std::uint64_t slot) const;
  void free(std::uint64_t slot);

  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  Head* head_ = nullptr;
  std::span<SourceRecord> sources_;
  std::byte* units_ = nullptr;
  std::uint64_t most_units_ = 0;
  std::uint64_t live_ = 0;  // number of live names
  // For each size in units: 1 + the slot that was freed last, or 0.
  std::array<std::uint64_t, kMaxUnits + 1> free_{};
};

}  // namespace stfs
