// A thread that closes descriptors: the last one of device memory takes as long as the driver needs
// to free it.
//
// Thread safety: close() may be called from any thread. Lifetime: the destructor waits for the
// thread, which closes everything first.
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

  // Closes here where no thread can be started.
  void close(std::vector<UniqueFd> descriptors) noexcept;

 private:
  void work();

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<UniqueFd> waiting_;
  bool is_ending_ = false;
  std::thread thread_;  // begins with the first descriptor
};

}  // namespace stfs::gpu
