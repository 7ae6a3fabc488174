// Tells whether a process has written to a file, or has had it open for writing: an inotify(7)
// instance for many files, each with a watch that ends with its first event (IN_ONESHOT). So nobody
// need read the events in time: to ask is to add the watch again, which gives a watch that stands
// the number that it has, and one that has ended another. A watch ends without such an event when
// the last name of its file is removed.
//
// Ask while no process has the file open for writing, as under a lease: a writer's events come
// before its descriptor is closed for others, and a write through a mapping has none but that
// close.
//
// Thread safety: all members.
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

  // Watches a file from now on, and sets `watch` to the watch: 0 where it cannot be watched (limits
  // of inotify, no /proc). Returns whether `watch` was one before, and nobody has written since.
  bool renew(int file, std::uint64_t& watch) const;

 private:
  // A few watches; takes no memory.
  struct Few {
    std::array<int, 64> watches{};
    std::size_t count = 0;
    bool add(int watch);     // false: no room
    bool remove(int watch);  // false: it is none of them
  };

  void read_events() const;

  UniqueFd events_;
  mutable std::mutex mutex_;
  mutable std::uint64_t lost_ = 0;  // times that there was no room for an event
  mutable Few written_;             // whose end is not read yet
  mutable Few removed_;             // ended without an event of a writer
};

}  // namespace stfs
