// Detects whether a process has written to a file, or has had it open for writing. One inotify(7)
// instance serves many files. Each watch ends with its first event (IN_ONESHOT), so the events need
// not be read in time: to check a watch, renew() adds it again. If the watch still exists, the
// kernel returns the same number; if it has ended, the number is a new one. A watch also ends,
// without an event of a writer, when the last name of its file is removed.
//
// Call renew() only while no process has the file open for writing, as under a lease. Then all
// descriptors of writers are closed, so their events have arrived; for a write through a mapping,
// closing is the only event.
//
// Thread safety: all members may be called from any thread.
#pragma once

#include "core/base/posix.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace stfs {

class WriterWatch {
 public:
  WriterWatch();

  // Watches a file from now on, and sets `watch` to the new watch, or to 0 if the file cannot be
  // watched (limits of inotify, no /proc). Returns true if `watch` was valid before and no process
  // has written to the file since it was added.
  bool renew(int file, std::uint64_t& watch) const;

 private:
  // A small set of watches that allocates no memory.
  struct Few {
    std::array<int, 64> watches{};
    std::size_t count = 0;
    bool add(int watch);     // returns false if it is full
    bool remove(int watch);  // returns false if it does not contain `watch`
  };

  void read_events() const;

  UniqueFd events_;
  mutable std::mutex mutex_;
  mutable std::uint64_t lost_ = 0;  // number of events that were lost for lack of room
  mutable Few written_;             // ended by a writer; the event IN_IGNORED is not read yet
  mutable Few removed_;             // ended without an event of a writer
};

}  // namespace stfs
