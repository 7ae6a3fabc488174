#include "fs/mount/repeated_reads.h"

#include <algorithm>
#include <new>

namespace stfs {

void RepeatedReads::failed(const Read& read, Clock::time_point began,
                           Clock::time_point now) noexcept try {
  if (now - began < kLong) return;
  const std::lock_guard lock(mutex_);
  const auto is_of = [&](const Failure& failure) { return overlap(failure.read, read); };
  if (std::ranges::any_of(failures_, is_of)) return;
  failures_.push_back({read, now + kAtOnce, false});
  if (failures_.size() > kMost) failures_.pop_front();
} catch (const std::bad_alloc&) {
}

void RepeatedReads::succeeded(const Read& read) {
  const std::lock_guard lock(mutex_);
  failures_.remove_if([&](const Failure& failure) { return overlap(failure.read, read); });
}

bool RepeatedReads::take(const Read& read, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (Failure& failure : failures_) {
    if (!overlap(failure.read, read) || failure.is_told_twice || now > failure.until) continue;
    failure.is_told_twice = true;
    return true;
  }
  return false;
}

}  // namespace stfs
