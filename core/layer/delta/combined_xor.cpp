#include "core/layer/delta/combined_xor.h"

#include "core/base/error.h"
#include "core/base/posix.h"

#include <algorithm>
#include <cerrno>
#include <new>

namespace stfs {

CombinedXor::CombinedXor(std::span<const std::unique_ptr<Frame>> frames, std::uint64_t length,
                         std::size_t most)
    : frames_(frames), most_(most), left_(length) {
  if (length <= most) return;
  // Reserve here, because otherwise the new thread would create a malloc arena of its own.
  for (Slot& slot : slots_) slot.bytes.reserve(most);
  try {
    thread_ = start_thread([this] { run(); });
  } catch (const Error&) {  // next() decodes
  }
}

CombinedXor::~CombinedXor() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CombinedXor::decode(Slot& slot) {
  try {
    slot.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(most_, left_)));
    for (const auto& frame : frames_) {
      if (slot.error != 0) break;
      slot.error =
          frame == frames_.front() ? frame->apply_to_zeros(slot.bytes) : frame->apply(slot.bytes);
    }
  } catch (const std::bad_alloc&) {
    slot.error = ENOMEM;
  }
  left_ -= slot.bytes.size();
}

void CombinedXor::run() {
  for (std::size_t made = 0; left_ > 0; ++made) {
    Slot& slot = slots_[made % slots_.size()];
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_ending_ || !slot.is_full; });
    if (is_ending_) return;
    lock.unlock();
    decode(slot);
    lock.lock();
    slot.is_full = true;
    changed_.notify_all();
    if (slot.error != 0) return;
  }
}

int CombinedXor::next(std::span<const std::byte>& piece) {
  Slot& slot = slots_[taken_ % slots_.size()];
  if (!thread_.joinable()) {
    decode(slot);
  } else {
    std::unique_lock lock(mutex_);
    if (taken_ > 0) slots_[(taken_ - 1) % slots_.size()].is_full = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return slot.is_full; });
  }
  ++taken_;
  piece = slot.bytes;
  return slot.error;
}

}  // namespace stfs
