#include "fs/mount/recipes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stfs {

Recipes::Shared Recipes::find(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, number, &Entry::number);
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->recipe;
}

Recipes::Shared Recipes::get(std::uint64_t number, const std::function<New()>& make) {
  if (Shared known = find(number)) return known;
  const std::lock_guard one_at_a_time(making_);
  if (Shared known = find(number)) return known;
  New fresh = make();
  if (!fresh.content) return nullptr;
  Shared recipe = std::make_shared<const Content>(std::move(*fresh.content));

  std::list<Entry> evicted;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  entries_.push_front({number, fresh.tensors, recipe});
  tensors_ += fresh.tensors;
  while (entries_.size() > 1 && (entries_.size() > kMaxRecipes || tensors_ > kMaxTensors)) {
    tensors_ -= entries_.back().tensors;
    evicted.splice(evicted.begin(), entries_, std::prev(entries_.end()));
  }
  return recipe;
}

void Recipes::drop(std::uint64_t number) {
  std::list<Entry> dropped;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, number, &Entry::number);
  if (found == entries_.end()) return;
  tensors_ -= found->tensors;
  dropped.splice(dropped.begin(), entries_, found);
}

}  // namespace stfs
