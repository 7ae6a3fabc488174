// What one worker leaves to the next (see supervisor.h): the names that the kernel holds, which
// sources have changed or failed, and how much was done. It lies in memory that the supervisor made
// before it forked and that all workers share, and it is whole at every moment, since a worker can
// be killed between any two instructions.
//
// A record is live while its count of lookups is not 0. A name takes a whole number of units of 64
// bytes; what is freed is used again for names of as many units.
//
//   [ Head | for each source: has it changed, and its failures | unit | unit | ... ]
//
// Thread safety: add(), count() and restore() by one thread at a time, and keep_failures() too; the
// others by any. One worker uses it at a time.
#pragma once

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
  // The longest name that can be looked up in a directory.
  static constexpr std::size_t kLongestName = 255;

  struct Name {
    std::uint8_t view;
    std::uint32_t tensor;
    std::string_view expression;  // of at most kLongestName bytes
    std::uint64_t size;           // of the file, in bytes
    std::uint64_t number;
    std::uint64_t lookups;
  };

  // Reserves address space for `bytes` bytes of names; memory is taken as it is used. Throws Error
  // kMountFailed.
  explicit Ledger(std::size_t sources, std::size_t bytes = std::size_t{1} << 30);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

  // Writes a name down and returns its slot. Throws std::bad_alloc when there is no room.
  std::uint32_t add(const Name& name);
  // Writes down how often a name is looked up; 0 frees its slot.
  void count(std::uint32_t slot, std::uint64_t lookups);

  // Calls `take` for each live name, and finds the free slots again: for a new worker, before
  // anything else.
  void restore(const std::function<void(const Name& name, std::uint32_t slot)>& take);
  // Greater than every number that was ever added.
  std::uint64_t next_number() const { return head_->next_number; }

  void mark_changed(std::size_t source) { sources_[source].has_changed = true; }
  bool has_changed(std::size_t source) const { return sources_[source].has_changed; }
  // A source's failures, which are about to be logged or were. More can come, and a range can grow.
  void keep_failures(std::size_t source, std::span<const Source::Failure> failures);
  std::span<const Source::Failure> failures(std::size_t source) const;

  void count_answer() { head_->answers.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t answers() const { return head_->answers; }

 private:
  struct Head {
    std::atomic<std::uint64_t> next_number;
    std::atomic<std::uint64_t> units;  // that were ever used
    alignas(64) std::atomic<std::uint64_t> answers;
  };
  struct Record {
    std::atomic<std::uint64_t> lookups;  // written last
    std::uint64_t number;                // while it is free: the next free slot, as in free_
    std::uint64_t size;
    std::uint32_t tensor;
    std::uint8_t view;
    std::uint8_t length;  // of the text, which follows
  };
  struct OfSource {
    std::atomic<bool> has_changed;
    std::atomic<std::size_t> failed;  // how many of the failures are whole
    std::array<Source::Failure, Source::kMaxFailures> failures;
  };
  static constexpr std::size_t kUnit = 64;
  static constexpr std::size_t kText = 30;  // bytes before the text in a record
  static constexpr std::size_t kMostUnits = (kText + kLongestName + kUnit - 1) / kUnit;

  static std::size_t units_for(std::size_t length) { return (kText + length + kUnit - 1) / kUnit; }
  std::byte* at(std::uint64_t slot) const { return units_ + slot * kUnit; }
  Record& record(std::uint64_t slot) const;
  void free(std::uint64_t slot);

  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  Head* head_ = nullptr;
  std::span<OfSource> sources_;
  std::byte* units_ = nullptr;
  std::uint64_t most_units_ = 0;
  std::uint64_t live_ = 0;  // names
  // By units: 1 + the last slot that was freed, or 0.
  std::array<std::uint64_t, kMostUnits + 1> free_{};
};

}  // namespace stfs
