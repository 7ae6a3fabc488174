#include "tools/gpu/holder/closer.h"

#include <exception>
#include <iterator>
#include <utility>

namespace stfs::gpu {

Closer::~Closer() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Closer::close(std::vector<UniqueFd> descriptors) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    waiting_.insert(waiting_.end(), std::move_iterator(descriptors.begin()),
                    std::move_iterator(descriptors.end()));
    changed_.notify_all();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): `descriptors` closes them
  }
}

void Closer::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::vector<UniqueFd> closed = std::exchange(waiting_, {});
    lock.unlock();
    closed.clear();
    lock.lock();
  }
}

}  // namespace stfs::gpu
