// Ends what this thread computes when nobody waits for it any more. Who needs the bytes says how to
// ask for that, and the code that computes them asks from time to time, and gives up with EINTR:
//
//   const WhileWanted while_wanted([&] { return !is_interrupted; });
//   const int error = content.read(...);
//
// Thread safety: each thread has its own. Lifetime: on the stack, so that the last made ends first.
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

  // Whether this thread is to give up. Asks after kAsk, and then at most once in kAsk: a short
  // computation never asks, and the answer may take a moment.
  static bool has_ended();
  static constexpr std::chrono::milliseconds kAsk{50};

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<bool()> is_wanted_;
  WhileWanted* const outer_;
  Clock::time_point ask_at_{};  // not before the first question
  bool has_ended_ = false;
};

}  // namespace stfs
