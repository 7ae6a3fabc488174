// Counts the work done so far, for `.stfs/counters.json`. The counters are in memory that
// supervised workers share.
//
// Thread safety: all members may be called from any thread. A Counters is constructed in zeroed
// memory and never destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stfs {

struct Counters {
  using Count = std::atomic<std::uint64_t>;

  // Reads of the mount's files:
  Count reads{};           // read requests of the kernel
  Count bytes_returned{};  // bytes sent to readers
  // Transfers from remote sources, and use of the cache:
  Count requests{};       // HTTP requests sent
  Count bytes_fetched{};  // bytes of response bodies
  Count retries{};        // requests sent again
  Count cache_hits{};     // blocks that were in the cache when this process first needed them
  // Blocks in the cache whose checksum did not match, or that could not be read.
  Count cache_corrupt{};
  Count waits{};  // ranges that had to wait for the network
  Count nanoseconds_waited{};
  Count timeouts{};  // ranges that did not arrive in time

  // The timeouts by server. If a worker dies before it has finished a name, that entry stays
  // unused.
  struct Server {
    enum State : std::uint32_t { kFree, kNaming, kNamed };
    static constexpr std::size_t kLongest = 100;  // bytes; longer names are cut

    std::atomic<std::uint32_t> state{};  // kFree; kNaming while a thread writes the name; kNamed
    char name[kLongest + 1]{};           // immutable once kNamed
    Count timeouts{};
  };
  std::array<Server, 16> servers{};  // timeouts of further servers are counted only in `timeouts`

  // Counts a timeout of `server`, such as "https://host:8000".
  void add_timeout(std::string_view server) {
    timeouts.fetch_add(1, std::memory_order_relaxed);
    server = server.substr(0, Server::kLongest);
    for (Server& one : servers) {
      std::uint32_t state = Server::kFree;
      if (one.state.compare_exchange_strong(state, Server::kNaming)) {
        server.copy(one.name, server.size());
        one.state.store(Server::kNamed, std::memory_order_release);
        state = Server::kNamed;
      }
      if (state != Server::kNamed || server != one.name) continue;
      one.timeouts.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
};

// Adds to a counter. Does nothing if `counters` is null, as in a process that does not count.
inline void tally(Counters* counters, Counters::Count Counters::*which, std::uint64_t more = 1) {
  if (counters != nullptr) (counters->*which).fetch_add(more, std::memory_order_relaxed);
}

}  // namespace stfs
