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

  // Of the mount.
  Count reads{};           // requests to read
  Count bytes_answered{};  // to readers
  // Of its remote sources.
  Count requests{};       // HTTP requests sent
  Count bytes_fetched{};  // of bodies
  Count retries{};        // requests sent again
  Count cache_hits{};     // blocks that were in the cache when this process first needed them
  Count cache_faults{};   // blocks of the cache that were not what was written
  Count waits{};          // ranges that had to wait for the network
  Count nanoseconds_waited{};
};

}  // namespace stfs
