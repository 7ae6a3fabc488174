#include "fs/looked_up.h"

#include <malloc.h>

#include <tuple>
#include <utility>

namespace stfs {

std::size_t LookedUpNames::Hash::operator()(const Name* name) const {
  const std::size_t place = (std::size_t{name->tensor} << 8 | name->view) * 0x9E3779B97F4A7C15U;
  return std::hash<std::string_view>()(name->expression) ^ place;
}

bool LookedUpNames::Equal::operator()(const Name* a, const Name* b) const {
  return std::tie(a->view, a->tensor, a->expression) == std::tie(b->view, b->tensor, b->expression);
}

std::uint64_t LookedUpNames::look_up(std::uint8_t view, std::uint32_t tensor,
                                     std::string_view expression,
                                     const std::function<std::optional<Content>()>& make) {
  auto name =
      std::make_unique<Name>(Name{view, tensor, std::string(expression), std::nullopt, 0, 1});
  const auto known = [&]() -> Name* {
    const auto found = by_name_.find(name.get());
    return found == by_name_.end() ? nullptr : *found;
  };
  {
    const std::lock_guard lock(mutex_);
    if (Name* found = known()) {
      ++found->lookups;
      return found->number;
    }
  }
  name->content = make();
  const std::lock_guard lock(mutex_);
  if (Name* found = known()) {  // another thread was faster
    ++found->lookups;
    return found->number;
  }
  const std::uint64_t number = name->number = next_++;
  Name* const added = name.get();
  by_number_.emplace(number, std::move(name));
  by_name_.insert(added);
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
    if (name.lookups > lookups) {
      name.lookups -= lookups;
      return;
    }
    by_name_.erase(&name);
    by_number_.erase(found);
    // The allocator keeps the memory of small things; the kernel forgets many names at a time.
    constexpr std::uint64_t kMany = 16384;
    const std::uint64_t enough = by_number_.empty() ? kMany / 16 : kMany;
    give_back = ++freed_ >= enough;
    if (give_back) freed_ = 0;
  }
  if (give_back) ::malloc_trim(0);
}

std::size_t LookedUpNames::size() const {
  const std::lock_guard lock(mutex_);
  return by_number_.size();
}

}  // namespace stfs
