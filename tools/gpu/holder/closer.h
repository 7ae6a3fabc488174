// A thread that closes descriptors, because closing the last descriptor of device memory takes as
// long as the driver needs to free the memory.
//
// Thread safety: close() may be called from any thread. Lifetime: the destructor waits until the
// thread has closed all descriptors.
#pragma once

#include "core/base/posix.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace stfs::gpu {

class Closer {
 public:
  Closer() = default;
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer();

  // Closes the descriptors in the thread, or in the caller if no thread can be started.
  void close(std::vector<UniqueFd> descriptors) noexcept;

 private:
  void work();

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<UniqueFd> waiting_;
  bool is_ending_ = false;
  std::thread thread_;  // started for the first descriptor
};

}  // namespace stfs::gpu
