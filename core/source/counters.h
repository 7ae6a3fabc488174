// The work done so far, in numbers: `.stfs/counters.json`. They lie in memory that supervised
// workers share.
//
// Thread safety: all members. A Counters is constructed in zeroed memory, never destroyed.
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
  Count timeouts{};  // ranges that did not come in time

  // The timeouts by server. A worker may die at any moment: a name that it did not finish counts
  // for nobody, and takes one of the places.
  struct Server {
    enum State : std::uint32_t { kFree, kNaming, kNamed };
    static constexpr std::size_t kLongest = 100;  // bytes; longer names are cut

    std::atomic<std::uint32_t> state{};  // kFree, then kNaming by who takes it, then kNamed
    char name[kLongest + 1]{};           // immutable once kNamed
    Count timeouts{};
  };
  std::array<Server, 16> servers{};  // more are counted in `timeouts` alone

  // `server`: "https://host:8000".
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

// Adds to a count of those of a process that counts; null for one that does not.
inline void tally(Counters* counters, Counters::Count Counters::*which, std::uint64_t more = 1) {
  if (counters != nullptr) (counters->*which).fetch_add(more, std::memory_order_relaxed);
}

}  // namespace stfs
