#include "fs/mount/looked_up_names.h"

#include <malloc.h>

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace stfs {

std::size_t LookedUpNames::Hash::operator()(const Record* record) const {
  const std::size_t owner = (std::size_t{record->tensor} << 8 | record->view) * 0x9E3779B97F4A7C15U;
  return std::hash<std::string_view>()(record->expression) ^ owner;
}

bool LookedUpNames::Equal::operator()(const Record* a, const Record* b) const {
  return std::tie(a->view, a->tensor, a->expression) == std::tie(b->view, b->tensor, b->expression);
}

// Shrinks a hash table that is less than a quarter full.
template <class Table>
void LookedUpNames::shrink(Table& table) {
  if (table.bucket_count() / 4 <= table.size()) return;
  try {
    table.rehash(0);
  } catch (const std::bad_alloc&) {
    // Keep the large table.
  }
}

// The caller holds mutex_. Throws std::bad_alloc without a change.
void LookedUpNames::insert(Record fresh) {
  const std::uint64_t number = fresh.number;
  const auto added = by_number_.emplace(number, std::move(fresh)).first;
  try {
    by_name_.insert(&added->second);
  } catch (...) {
    by_number_.erase(added);
    throw;
  }
}

void LookedUpNames::restore() {
  if (ledger_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  ledger_->restore([&](const Ledger::Name& left, std::uint32_t slot) {
    insert({{left.view, left.tensor, std::string(left.expression), left.size, left.number,
             left.lookups},
            slot});
  });
  next_ = ledger_->next_number();
}

std::optional<std::uint64_t> LookedUpNames::look_up(std::uint8_t view, std::uint32_t tensor,
                                                    std::string_view expression, const Size& size) {
  Record added{{view, tensor, std::string(expression), 0, 0, 1}};
  // Write the ledger before the kernel gets its answer. If the worker dies in between, the count is
  // too high, and the name is kept until unmount; a count that is too low would lose the file.
  const auto known = [&]() -> std::optional<std::uint64_t> {
    const auto found = by_name_.find(&added);
    if (found == by_name_.end()) return std::nullopt;
    Record& record = **found;
    ++record.lookups;
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
    insert(added);
  } catch (...) {
    if (ledger_ != nullptr) ledger_->count(added.slot, 0);
    throw;
  }
  return added.number;
}

const LookedUpNames::Name* LookedUpNames::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &found->second;
}

void LookedUpNames::forget(std::uint64_t number, std::uint64_t lookups) {
  bool give_back = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_number_.find(number);
    if (found == by_number_.end()) return;
    Record& record = found->second;
    record.lookups -= std::min(lookups, record.lookups);
    if (ledger_ != nullptr) ledger_->count(record.slot, record.lookups);
    if (record.lookups != 0) return;
    by_name_.erase(&record);
    by_number_.erase(found);
    // Neither malloc nor a hash table returns memory by itself. Trim rarely, because the kernel
    // forgets many names at a time.
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

std::size_t LookedUpNames::size() const {
  const std::lock_guard lock(mutex_);
  return by_number_.size();
}

}  // namespace stfs
