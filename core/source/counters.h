// The work done so far, in numbers: `.stfs/counters.json`. They lie in memory that supervised
// workers share.
//
// Thread safety: all members. A Counters is constructed in zeroed memory, never destroyed.
#pragma once

#include <atomic>
#include <cstdint>

namespace stfs {

struct Counters {
  using Count = std::atomic<std::uint64_t>;

  // Reads of the mount's files:
  Count reads{};           // requests to read
  Count bytes_answered{};  // to readers
  // Transfers from remote sources, and use of the cache:
  Count requests{};       // HTTP requests sent
  Count bytes_fetched{};  // of bodies
  Count retries{};        // requests sent again
  Count cache_hits{};     // blocks that were in the cache when this process first needed them
  Count cache_faults{};   // blocks of the cache that were not what was written
  Count waits{};          // ranges that had to wait for the network
  Count nanoseconds_waited{};
};

// Adds to a count of those of a process that counts; null for one that does not.
inline void tally(Counters* counters, Counters::Count Counters::*which, std::uint64_t more = 1) {
  if (counters != nullptr) (counters->*which).fetch_add(more, std::memory_order_relaxed);
}

}  // namespace stfs
