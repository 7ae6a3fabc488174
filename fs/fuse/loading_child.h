// A short-lived child process that loads something, for a process that must stay without threads
// and without a network: the supervisor (core/remote/sources.h).
//
// The child lives as long as this object, so that what it holds (the entries of the cache) stays
// until the parent holds it too.
//
// Thread safety: construct in a single-threaded process, since it forks.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <functional>
#include <string>

namespace stfs {

class LoadingChild {
 public:
  // Runs `load` in the child and waits for the text that it returns. Throws the Error that it
  // throws, and kUnreadable when the child ends before.
  explicit LoadingChild(const std::function<std::string()>& load);
  LoadingChild(const LoadingChild&) = delete;
  LoadingChild& operator=(const LoadingChild&) = delete;
  ~LoadingChild();

  const std::string& text() const { return text_; }

 private:
  int end();  // its status

  UniqueFd socket_;
  pid_t child_ = -1;
  std::string text_;
};

}  // namespace stfs
