#include "fs/mount/looked_up.h"

#include <malloc.h>

#include <algorithm>
#include <new>
#include <tuple>

namespace stfs {

std::size_t LookedUpNames::Hash::operator()(const Record* record) const {
  const std::size_t owner = (std::size_t{record->tensor} << 8 | record->view) * 0x9E3779B97F4A7C15U;
  return std::hash<std::string_view>()(record->expression) ^ owner;
}

bool LookedUpNames::Equal::operator()(const Record* a, const Record* b) const {
  return std::tie(a->view, a->tensor, a->expression) == std::tie(b->view, b->tensor, b->expression);
}

// Shrinks a table that is less than a quarter full.
template <class Table>
void LookedUpNames::shrink(Table& table) {
  if (table.bucket_count() / 4 <= table.size()) return;
  try {
    table.rehash(0);
  } catch (const std::bad_alloc&) {
    // Keep the large table.
  }
}

// Call the private members below with the lock.

LookedUpNames::List& LookedUpNames::list_of(const Record& record) {
  return record.opens != 0 ? open_ : record.is_asked ? asked_ : idle_;
}

// Changes a record, and moves it to the end of the list of its new state.
template <class Change>
void LookedUpNames::change(Record& record, const Change& change) {
  List& from = list_of(record);
  change(record);
  List& to = list_of(record);
  to.splice(to.end(), from, record.self);
  if (has_surplus()) surplus_.notify_one();
}

// Takes the only record of `fresh`. Throws std::bad_alloc without a change.
void LookedUpNames::insert(List& fresh) {
  Record& record = fresh.front();
  record.self = fresh.begin();
  const auto numbered = by_number_.emplace(record.number, &record).first;
  try {
    by_name_.insert(&record);
  } catch (...) {
    by_number_.erase(numbered);
    throw;
  }
  idle_.splice(idle_.end(), fresh);
  // The kernel keeps asked names, so let one be asked again. One for each new name, else the two
  // threads would run in circles.
  if (asked_.size() > bound_) {
    change(asked_.front(), [](Record& changed) { changed.is_asked = false; });
  }
  if (has_surplus()) surplus_.notify_one();
}

void LookedUpNames::restore() {
  if (ledger_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  ledger_->restore([&](const Ledger::Name& left, std::uint32_t slot) {
    List fresh;
    fresh.push_back({{left.view, left.tensor, std::string(left.expression), left.size, left.number,
                      left.lookups}});
    fresh.front().slot = slot;
    insert(fresh);
  });
  next_ = ledger_->next_number();
}

std::optional<std::uint64_t> LookedUpNames::look_up(std::uint8_t view, std::uint32_t tensor,
                                                    std::string_view expression, const Size& size) {
  List fresh;
  fresh.push_back({{view, tensor, std::string(expression), 0, 0, 1}});
  Record& added = fresh.front();
  // Write the ledger before the answer to the kernel. If the worker dies between, the count is too
  // high and the name is kept until unmount; a count that is too low would lose the file.
  const auto known = [&]() -> std::optional<std::uint64_t> {
    const auto found = by_name_.find(&added);
    if (found == by_name_.end()) return std::nullopt;
    Record& record = **found;
    change(record, [](Record& changed) {
      ++changed.lookups;
      changed.is_asked = false;
    });
    if (ledger_ != nullptr) ledger_->count(record.slot, record.lookups);
    return record.number;
  };
  {
    const std::lock_guard lock(mutex_);
    if (const auto number = known()) return number;
  }
  const std::optional<std::uint64_t> bytes = size();
  if (!bytes) return std::nullopt;
  added.size = *bytes;

  const std::lock_guard lock(mutex_);
  if (const auto number = known()) return number;  // another thread was faster
  added.number = next_++;
  if (ledger_ != nullptr) {
    added.slot = ledger_->add({view, tensor, expression, added.size, added.number, 1});
  }
  try {
    insert(fresh);
  } catch (...) {
    if (ledger_ != nullptr) ledger_->count(added.slot, 0);
    throw;
  }
  return added.number;
}

const LookedUpNames::Name* LookedUpNames::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

void LookedUpNames::open(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  change(*found->second, [](Record& changed) {
    ++changed.opens;
    changed.is_asked = false;
  });
}

void LookedUpNames::release(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  // opens is 0 if an earlier worker answered the OPEN.
  if (found == by_number_.end() || found->second->opens == 0) return;
  change(*found->second, [](Record& changed) { --changed.opens; });
}

void LookedUpNames::forget(std::uint64_t number, std::uint64_t lookups) {
  bool give_back = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_number_.find(number);
    if (found == by_number_.end()) return;
    Record& record = *found->second;
    record.lookups -= std::min(lookups, record.lookups);
    if (ledger_ != nullptr) ledger_->count(record.slot, record.lookups);
    if (record.lookups != 0) return;
    by_name_.erase(&record);
    by_number_.erase(found);
    list_of(record).erase(record.self);
    // Neither malloc nor a hash table gives memory back by itself. Trim rarely: the kernel forgets
    // many names at a time.
    constexpr std::uint64_t kMany = 16384;
    const std::uint64_t enough = by_number_.empty() ? kMany / 16 : kMany;
    give_back = ++freed_ >= enough;
    if (give_back) {
      freed_ = 0;
      shrink(by_number_);
      shrink(by_name_);
    }
  }
  if (give_back) ::malloc_trim(0);
}

// Asked names do not count: the kernel is dropping them.
bool LookedUpNames::has_surplus() const {
  return !idle_.empty() && by_number_.size() - asked_.size() > bound_;
}

LookedUpNames::Surplus LookedUpNames::take() {
  Record& oldest = idle_.front();
  change(oldest, [](Record& changed) { changed.is_asked = true; });
  return {oldest.view, oldest.number};
}

std::optional<LookedUpNames::Surplus> LookedUpNames::take_surplus() {
  const std::lock_guard lock(mutex_);
  return has_surplus() ? std::optional(take()) : std::nullopt;
}

std::optional<LookedUpNames::Surplus> LookedUpNames::wait_for_surplus() {
  std::unique_lock lock(mutex_);
  surplus_.wait(lock, [this] { return stopping_ || has_surplus(); });
  return stopping_ ? std::nullopt : std::optional(take());
}

void LookedUpNames::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  surplus_.notify_all();
}

std::size_t LookedUpNames::size() const {
  const std::lock_guard lock(mutex_);
  return by_number_.size();
}

}  // namespace stfs
