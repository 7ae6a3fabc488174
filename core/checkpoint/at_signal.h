// A new file or directory must not stay behind when its command ends early. These clean up at a
// signal, make names that nobody else has, and keep signals out of a step.
//
// Thread safety: one thread constructs, uses and destroys an object.
#pragma once

#include "core/base/posix.h"

#include <csignal>
#include <functional>
#include <string>
#include <thread>

namespace stfs {

// Calls a function when SIGHUP, SIGINT or SIGTERM ends the process. The constructor blocks these
// signals. The thread that watch() starts reads them, also those that came before it, calls the
// function and raises the signal again. Throws Error kUnreadable.
class AtSignal {
 public:
  AtSignal();
  ~AtSignal();
  AtSignal(const AtSignal&) = delete;
  AtSignal& operator=(const AtSignal&) = delete;

  void watch(std::function<void()> clean_up);

 private:
  void wait() const;

  std::function<void()> clean_up_;
  UniqueFd end_;
  UniqueFd signals_;
  sigset_t before_{};
  std::thread thread_;
};

// Blocks all signals in this thread while it lives.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

// A random name. It does not contain the target's name, which may have 255 bytes (NAME_MAX)
// already. Throws Error kUnreadable.
std::string temporary_name();

}  // namespace stfs
