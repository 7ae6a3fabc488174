#include "core/base/while_wanted.h"

#include <utility>

namespace stfs {
namespace {

thread_local WhileWanted* current = nullptr;

}  // namespace

WhileWanted::WhileWanted(std::function<bool()> is_wanted)
    : is_wanted_(std::move(is_wanted)), outer_(std::exchange(current, this)) {}

WhileWanted::~WhileWanted() { current = outer_; }

bool WhileWanted::has_ended() {
  if (current == nullptr || current->has_ended_) return current != nullptr;
  const Clock::time_point now = Clock::now();
  const bool is_first = current->ask_at_ == Clock::time_point{};
  if (now < current->ask_at_) return false;
  current->ask_at_ = now + kAsk;
  current->has_ended_ = !is_first && !current->is_wanted_();
  return current->has_ended_;
}

}  // namespace stfs
