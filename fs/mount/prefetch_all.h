// `-o prefetch=all`: a thread that fetches all bytes of the sources, one source after the other,
// and checks the SHA-256 of each where it is known.
//
// It asks for what lies ahead as a reader's window does, and waits for one piece at a time: so what
// readers want goes first. It logs one line when it has ended, or one for what stopped it; a source
// with another SHA-256 gets a line of its own, and is refused (Source::refuse).
//
// Thread safety: none needed. Lifetime: the sources outlive it. The destructor stops the thread,
// which may wait at most for a read of the local disk.
#pragma once

#include "core/source/source.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace stfs {

class PrefetchAll {
 public:
  using Log = std::function<void(const std::string& line)>;

  // Whether bytes of a source are missing, or nobody has compared a copy with its digest.
  static bool has_work(const Source* source);

  PrefetchAll(std::vector<const Source*> sources, Log log);
  PrefetchAll(const PrefetchAll&) = delete;
  PrefetchAll& operator=(const PrefetchAll&) = delete;
  ~PrefetchAll();

 private:
  void run();
  // 0, or an errno that was logged; EINTR, which was not, after the destructor began.
  int fetch(const Source& source);
  int check(const Source& source);

  const std::vector<const Source*> sources_;
  const Log log_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // uses the members above
};

}  // namespace stfs
