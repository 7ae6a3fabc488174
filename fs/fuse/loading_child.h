// A short-lived child process that loads something for the supervisor, which must neither have
// threads nor use the network itself (core/remote/sources.h).
//
// The child lives as long as this object, so that it holds its resources (the entries of the cache)
// until the parent holds them too.
//
// Thread safety: must be constructed in a single-threaded process, because it forks.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <functional>
#include <string>

namespace stfs {

class LoadingChild {
 public:
  // Runs `load` in the child and waits for the text that it returns. Throws the Error that `load`
  // throws, or Error kUnreadable if the child ends before it has sent a result.
  explicit LoadingChild(const std::function<std::string()>& load);
  LoadingChild(const LoadingChild&) = delete;
  LoadingChild& operator=(const LoadingChild&) = delete;
  ~LoadingChild();

  const std::string& text() const { return text_; }

 private:
  int end();  // ends the child and returns its wait status

  UniqueFd socket_;
  pid_t child_ = -1;
  std::string text_;
};

}  // namespace stfs
