#include "core/layer/delta/decoder_memory.h"

#include <algorithm>
#include <new>

namespace stfs {

void Cursor::add(std::span<const std::byte> bytes) {
  const std::span last = bytes.last(std::min(bytes.size(), kWindow));
  if (window.size() + last.size() > 2 * kWindow) {
    const std::size_t kept = kWindow - last.size();
    window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(kept));
  }
  window.insert(window.end(), last.begin(), last.end());
}

std::shared_ptr<const Changes> DecoderMemory::changes(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  const auto found = changes_.find(tensor);
  if (found == changes_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->changes;
}

// The caller frees the entries in `gone` after it has released the lock.
void DecoderMemory::make_room(std::uint64_t bytes, std::vector<Kept>& gone) {
  while (memory_ + bytes > most_ && !kept_.empty()) {
    Kept& last = kept_.back();
    memory_ -= last.memory;
    idle_ -= last.memory;
    if (last.changes != nullptr) changes_.erase(last.tensor);
    gone.push_back(std::move(last));
    kept_.pop_back();
  }
}

void DecoderMemory::add(std::uint64_t bytes) {
  memory_ += bytes;
  most_used_ = std::max(most_used_, memory_);
}

bool DecoderMemory::reserve(std::uint64_t bytes) {
  std::vector<Kept> gone;
  const std::lock_guard lock(mutex_);
  if (memory_ - idle_ + bytes > most_) return false;
  make_room(bytes, gone);
  add(bytes);
  return true;
}

void DecoderMemory::release(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_ -= bytes;
  changed_.notify_all();
}

void DecoderMemory::keep(std::size_t tensor, std::shared_ptr<const Changes> changes,
                         std::uint64_t reserved) {
  const std::lock_guard lock(mutex_);
  kept_.push_front({tensor, std::move(changes), nullptr, reserved});
  changes_[tensor] = kept_.begin();
  idle_ += reserved;
  changed_.notify_all();
}

std::uint64_t DecoderMemory::most_used() const {
  const std::lock_guard lock(mutex_);
  return most_used_;
}

DecoderMemory::Turn::Turn(DecoderMemory& room, const Open& open) : Turn(room) {
  drop();
  start(open, 0);
}

DecoderMemory::Turn::Turn(DecoderMemory& room, std::size_t tensor, std::uint64_t offset,
                          const Open& open)
    : Turn(room) {
  tensor_ = tensor;
  if (!take(offset)) start(open, 2 * Cursor::kWindow);
}

DecoderMemory::Turn::~Turn() {
  const std::lock_guard lock(room_.mutex_);
  if (busy_) room_.busy_.erase(*busy_);
  if (runs_) --room_.running_;
  try {
    if (runs_ && !is_dropped_) {
      room_.kept_.push_front({tensor_, nullptr, nullptr, memory_});
      room_.kept_.front().cursor.swap(cursor_);
      room_.idle_ += memory_;
    }
  } catch (const std::bad_alloc&) {
    is_dropped_ = true;  // the next reader starts again
  }
  if (cursor_ != nullptr) {
    cursor_.reset();
    room_.memory_ -= memory_;
  }
  room_.changed_.notify_all();
}

// Only one thread at a time opens decoders and waits for room. So the memory that is not counted
// yet is at most the memory of one chain's decoders.
void DecoderMemory::Turn::start(const Open& open, std::uint64_t more) {
  const std::lock_guard opening(room_.opening_);
  cursor_->frames = open();
  std::uint64_t memory = more;
  for (const auto& frame : cursor_->frames) memory += frame->memory();
  std::vector<Kept> gone;
  std::unique_lock lock(room_.mutex_);
  for (;;) {
    room_.make_room(memory, gone);
    if (room_.memory_ + memory <= room_.most_ || room_.running_ == 0) break;
    room_.changed_.wait(lock);
  }
  room_.add(memory);
  memory_ = memory;
  runs_ = true;
  ++room_.running_;
}

// Takes the idle cursor of the tensor that is nearest to the offset and does not have to start
// again.
bool DecoderMemory::Turn::take_idle(std::uint64_t offset) {
  auto best = room_.kept_.end();
  for (auto kept = room_.kept_.begin(); kept != room_.kept_.end(); ++kept) {
    if (kept->cursor == nullptr || kept->tensor != tensor_) continue;
    if (kept->cursor->begin() > offset) continue;
    if (best == room_.kept_.end() || kept->cursor->at > best->cursor->at) best = kept;
  }
  if (best == room_.kept_.end()) return false;
  cursor_ = std::move(best->cursor);
  memory_ = best->memory;
  runs_ = true;
  room_.idle_ -= memory_;
  room_.kept_.erase(best);
  ++room_.running_;
  return true;
}

// Waits while another reader of the tensor has a smaller offset, or while a running cursor may
// help.
bool DecoderMemory::Turn::take(std::uint64_t offset) {
  std::unique_lock lock(room_.mutex_);
  const auto here = room_.waiting_.emplace(tensor_, offset);
  bool is_found = false;
  for (;;) {
    const bool is_first = room_.waiting_.lower_bound({tensor_, 0}) == here;
    is_found = is_first && take_idle(offset);
    const bool may_help = std::ranges::any_of(room_.busy_, [&](const auto& busy) {
      return busy.first == tensor_ && busy.second <= offset;
    });
    if (is_found || (is_first && !may_help)) break;
    room_.changed_.wait(lock);
  }
  room_.waiting_.erase(here);
  room_.changed_.notify_all();
  busy_ = room_.busy_.emplace(room_.busy_.end(), tensor_, cursor_->begin());
  return is_found;
}

}  // namespace stfs
