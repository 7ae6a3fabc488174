#include "fs/mount/ledger.h"

#include "core/base/posix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

namespace stfs {
namespace {

constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Ledger::Ledger(std::size_t sources, std::size_t bytes) {
  const std::size_t before_units = round_up(sizeof(Head) + sources * sizeof(SourceRecord), kPage);
  bytes_ = before_units + round_up(bytes, kPage);
  memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory_ == MAP_FAILED) throw_errno(ErrorCode::kMountFailed, "", "supervise: mmap", errno);
  auto* const begin = static_cast<std::byte*>(memory_);
  head_ = new (begin) Head{};
  auto* const first = reinterpret_cast<SourceRecord*>(begin + sizeof(Head));
  std::uninitialized_value_construct_n(first, sources);
  sources_ = {first, sources};
  units_ = begin + before_units;
  most_units_ = (bytes_ - before_units) / kUnit;
}

Ledger::~Ledger() { ::munmap(memory_, bytes_); }

void Ledger::keep_failures(std::size_t source, std::span<const Source::Failure> failures) {
  SourceRecord& kept = sources_[source];
  std::ranges::copy(failures, kept.failures.begin());
  kept.failed.store(failures.size(), std::memory_order_release);
}

std::span<const Source::Failure> Ledger::failures(std::size_t source) const {
  const SourceRecord& kept = sources_[source];
  return std::span(kept.failures).first(kept.failed.load(std::memory_order_acquire));
}

Ledger::Record& Ledger::record(std::uint64_t slot) const {
  return *std::launder(reinterpret_cast<Record*>(at(slot)));
}

void Ledger::free(std::uint64_t slot) {
  Record& freed = record(slot);
  std::uint64_t& last = free_[units_for(freed.length)];
  freed.number = last;
  last = slot + 1;
}

std::uint32_t Ledger::add(const Name& name) {
  static_assert(offsetof(Record, length) + 1 == kText);
  if (name.expression.size() > kLongestName) throw std::bad_alloc();
  const std::size_t units = units_for(name.expression.size());
  std::uint64_t& last_free = free_[units];
  const bool is_new = last_free == 0;
  const std::uint64_t slot = is_new ? head_->units.load() : last_free - 1;
  constexpr std::uint64_t kMaxSlots = std::numeric_limits<std::uint32_t>::max();
  if (is_new && (slot + units > most_units_ || slot > kMaxSlots)) throw std::bad_alloc();
  if (head_->next_number <= name.number) head_->next_number = name.number + 1;

  Record& added = is_new ? *new (at(slot)) Record{} : record(slot);
  if (!is_new) last_free = added.number;
  added.number = name.number;
  added.size = name.size;
  added.tensor = name.tensor;
  added.view = name.view;
  added.length = static_cast<std::uint8_t>(name.expression.size());
  std::memcpy(at(slot) + kText, name.expression.data(), name.expression.size());
  added.lookups.store(name.lookups, std::memory_order_release);
  if (is_new) head_->units.store(slot + units, std::memory_order_release);
  ++live_;
  return static_cast<std::uint32_t>(slot);
}

void Ledger::count(std::uint32_t slot, std::uint64_t lookups) {
  record(slot).lookups.store(lookups, std::memory_order_release);
  if (lookups != 0) return;
  if (--live_ != 0) {
    free(slot);
    return;
  }
  // No name is live. Return the memory to the system.
  const std::uint64_t used = head_->units.exchange(0);
  free_ = {};
  ::madvise(units_, round_up(used * kUnit, kPage), MADV_REMOVE);
}

void Ledger::restore(const std::function<void(const Name& name, std::uint32_t slot)>& take) {
  live_ = 0;
  free_ = {};
  std::size_t units = 0;
  for (std::uint64_t slot = 0; slot < head_->units; slot += units) {
    const Record& found = record(slot);
    units = units_for(found.length);
    const std::uint64_t lookups = found.lookups.load(std::memory_order_acquire);
    if (lookups == 0) {
      free(slot);
      continue;
    }
    ++live_;
    const std::string_view text(reinterpret_cast<const char*>(at(slot) + kText), found.length);
    take({found.view, found.tensor, text, found.size, found.number, lookups},
         static_cast<std::uint32_t>(slot));
  }
}

}  // namespace stfs
