// `-o prefetch=all`: a thread that fetches all bytes of the sources, one source after the other,
// and checks each source whose SHA-256 is known.
//
// It prefetches the next bytes like the window of a reader, and waits for one piece at a time, so
// that requests of readers are served first. It logs one line after it has ended, or one line about
// the failure that stopped it. For a source with another SHA-256 it logs an additional line and
// calls Source::refuse().
//
// Thread safety: one thread constructs and destroys it. Lifetime: the sources must outlive it. The
// destructor stops the thread, and waits for at most one read of the local disk.
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

  // Returns true if bytes of a source are missing, or if it is a local file whose SHA-256 is known,
  // so that the file can be compared with it.
  static bool has_work(const Source* source);

  PrefetchAll(std::vector<const Source*> sources, Log log);
  PrefetchAll(const PrefetchAll&) = delete;
  PrefetchAll& operator=(const PrefetchAll&) = delete;
  ~PrefetchAll();

 private:
  void run();
  // Return 0, or an errno after logging it. Return EINTR without logging it after the destructor
  // has begun.
  int fetch(const Source& source);
  int check(const Source& source);

  const std::vector<const Source*> sources_;
  const Log log_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  // uses the members above
};

}  // namespace stfs
