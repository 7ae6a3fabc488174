#include "fs/looked_up.h"

#include <malloc.h>

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace stfs {

std::size_t LookedUpNames::Hash::operator()(const Name* name) const {
  const std::size_t place = (std::size_t{name->tensor} << 8 | name->view) * 0x9E3779B97F4A7C15U;
  return std::hash<std::string_view>()(name->expression) ^ place;
}

// Makes a table small again that has become nearly empty.
template <class Table>
void LookedUpNames::shrink(Table& table) {
  if (table.bucket_count() / 4 <= table.size()) return;
  try {
    table.rehash(0);
  } catch (const std::bad_alloc&) {
    // It stays as it is.
  }
}

bool LookedUpNames::Equal::operator()(const Name* a, const Name* b) const {
  return std::tie(a->view, a->tensor, a->expression) == std::tie(b->view, b->tensor, b->expression);
}

void LookedUpNames::keep(std::unique_ptr<Name> name) {
  const std::uint64_t number = name->number;
  by_name_.insert(by_number_.emplace(number, std::move(name)).first->second.get());
}

void LookedUpNames::restore(const std::function<std::optional<Content>(const Name& name)>& make) {
  if (ledger_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  ledger_->restore([&](const Ledger::Name& left, std::uint32_t place) {
    auto name = std::make_unique<Name>(Name{left.view, left.tensor, std::string(left.expression),
                                            std::nullopt, left.number, left.lookups, place});
    name->content = make(*name);
    keep(std::move(name));
  });
  next_ = ledger_->next_number();
}

std::uint64_t LookedUpNames::look_up(std::uint8_t view, std::uint32_t tensor,
                                     std::string_view expression,
                                     const std::function<std::optional<Content>()>& make) {
  auto name =
      std::make_unique<Name>(Name{view, tensor, std::string(expression), std::nullopt, 0, 1});
  // The ledger comes first: a lookup that the kernel never heard of costs a name that is kept too
  // long, one that the ledger missed would cost the file.
  const auto counted = [&]() -> Name* {
    const auto found = by_name_.find(name.get());
    if (found == by_name_.end()) return nullptr;
    ++(*found)->lookups;
    if (ledger_ != nullptr) ledger_->count((*found)->place, (*found)->lookups);
    return *found;
  };
  {
    const std::lock_guard lock(mutex_);
    if (const Name* known = counted()) return known->number;
  }
  name->content = make();
  const std::lock_guard lock(mutex_);
  if (const Name* known = counted()) return known->number;  // another thread was faster
  const std::uint64_t number = name->number = next_++;
  if (ledger_ != nullptr) name->place = ledger_->add({view, tensor, expression, number, 1});
  keep(std::move(name));
  return number;
}

const LookedUpNames::Name* LookedUpNames::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second.get();
}

void LookedUpNames::forget(std::uint64_t number, std::uint64_t lookups) {
  bool give_back = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_number_.find(number);
    if (found == by_number_.end()) return;
    Name& name = *found->second;
    name.lookups -= std::min(lookups, name.lookups);
    if (ledger_ != nullptr) ledger_->count(name.place, name.lookups);
    if (name.lookups != 0) return;
    by_name_.erase(&name);
    by_number_.erase(found);
    // The allocator keeps the memory of small things, and a table its room; the kernel forgets many
    // names at a time.
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
