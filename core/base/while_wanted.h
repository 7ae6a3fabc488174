// Stops a computation of this thread when no reader waits for its result any more. The code that
// needs the result passes a function that says whether it is still wanted. The code that computes
// calls has_ended() from time to time, and gives up with EINTR:
//
//   const WhileWanted while_wanted([&] { return !is_interrupted; });
//   const int error = content.read(...);
//
// Thread safety: an object affects only the thread that constructs it. Lifetime: keep objects on
// the stack, so that an inner one is destroyed before an outer one. has_ended() asks only the
// innermost.
#pragma once

#include <chrono>
#include <functional>

namespace stfs {

class WhileWanted {
 public:
  explicit WhileWanted(std::function<bool()> is_wanted);
  WhileWanted(const WhileWanted&) = delete;
  WhileWanted& operator=(const WhileWanted&) = delete;
  ~WhileWanted();

  // Returns true if this thread should give up. Calls `is_wanted` at most once per kAsk, and for
  // the first time kAsk after the first has_ended(), because the function may be slow, and a short
  // computation should never call it.
  static bool has_ended();
  static constexpr std::chrono::milliseconds kAsk{50};

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<bool()> is_wanted_;
  WhileWanted* const outer_;
  Clock::time_point ask_at_{};  // the next time to call is_wanted_; set by the first has_ended()
  bool has_ended_ = false;
};

}  // namespace stfs
