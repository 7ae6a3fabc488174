#include "tools/gpu/library/mappings.h"

#include <utility>

namespace stfs::gpu {

void Mappings::Parked::add(Segments one) noexcept {
  const std::lock_guard lock(mutex);
  segments.splice_after(segments.before_begin(), one);
}

// Waits for the device without holding the lock, so that no other thread has to wait as well.
void Mappings::Parked::retry() noexcept {
  Segments all;
  {
    const std::lock_guard lock(mutex);
    all.swap(segments);
  }
  while (!all.empty()) {
    if (!all.front()->unmap()) return add(std::move(all));  // the others would fail as well
    all.pop_front();
  }
}

Mappings::Used::~Used() {
  if (segment.front()->unmap()) {
    parked->retry();
  } else {
    parked->add(std::move(segment));
  }
}

std::shared_ptr<const MappedSegment> Mappings::adopt(std::unique_ptr<MappedSegment> segment) {
  const MappedSegment* const address = segment.get();
  Segments one;
  one.push_front(std::move(segment));
  auto used = std::make_shared<Used>(parked_, std::move(one));
  return {std::move(used), address};
}

void Mappings::retry() noexcept { parked_->retry(); }

}  // namespace stfs::gpu
