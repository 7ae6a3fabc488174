#include "fs/mount/recipes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stfs {

Recipes::Shared Recipes::find(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, number, &Kept::number);
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->recipe;
}

Recipes::Shared Recipes::get(std::uint64_t number, const std::function<New()>& make) {
  if (Shared known = find(number)) return known;
  const std::lock_guard one_at_a_time(making_);
  if (Shared known = find(number)) return known;
  New fresh = make();
  if (!fresh.content) return nullptr;
  Shared recipe = std::make_shared<const Content>(std::move(*fresh.content));

  std::list<Kept> thrown_out;  // ends without the lock
  const std::lock_guard lock(mutex_);
  kept_.push_front({number, fresh.tensors, recipe});
  tensors_ += fresh.tensors;
  while (kept_.size() > 1 && (kept_.size() > kMost || tensors_ > kMostTensors)) {
    tensors_ -= kept_.back().tensors;
    thrown_out.splice(thrown_out.begin(), kept_, std::prev(kept_.end()));
  }
  return recipe;
}

void Recipes::drop(std::uint64_t number) {
  std::list<Kept> dropped;  // ends without the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, number, &Kept::number);
  if (found == kept_.end()) return;
  tensors_ -= found->tensors;
  dropped.splice(dropped.begin(), kept_, found);
}

}  // namespace stfs
