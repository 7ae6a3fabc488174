// The statistics of the tensors that were computed most recently. Several views need them, but each
// tensor is computed only once.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include "core/values/stats.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace stfs {

class StatsCache {
 public:
  static constexpr std::size_t kMost = 16'384;  // maximum number of tensors; the oldest is dropped

  std::optional<ValueStats> find(std::uint32_t tensor) const {
    const std::lock_guard lock(mutex_);
    const auto found = stats_.find(tensor);
    return found == stats_.end() ? std::nullopt : std::optional(found->second);
  }

  void keep(std::uint32_t tensor, const ValueStats& stats) {
    const std::lock_guard lock(mutex_);
    if (stats_.contains(tensor)) return;
    by_age_.push_back(tensor);
    stats_.emplace(tensor, stats);
    if (by_age_.size() <= kMost) return;
    stats_.erase(by_age_.front());
    by_age_.pop_front();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, ValueStats> stats_;
  std::deque<std::uint32_t> by_age_;
};

}  // namespace stfs
