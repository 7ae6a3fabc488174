// The holder's state: the resident tensors, without its sockets and processes.
//
//   client  --request-->  Residency  --order-->  copier
//           <--reply----             <--answer--
//
// A tensor is in the index exactly when all its bytes are on the device. It leaves the index when
// it is evicted; its memory goes when, besides, the last lease on it has ended and its segment has
// no other tenant. Loads of a device happen one after the other, each as a whole or not at all; a
// request whose tensors are all resident never waits for one.
//
// A load of a device, and who makes each transition:
//
//   asked ──1──> waiting ──2──> ordered ──3──> begun ──4──> ended
//     │                           │ ▲  └──────────┴───5──────┘
//     └──1──> ended               └─┘6
//
//   1  a client's request: ended at once when all is resident or the request is refused
//   2  advance(), when the load before has ended: everything that is missing is ordered. Ended when
//      nothing is missing any more, or there is no room
//   3  the copier's first answer: progress
//   4  the copier's last answer: what it copied is published, and the client gets it
//   5  the copier's error or end, or no room on the device: the client gets the reason
//   6  order_again(), when the device is full: other tensors are evicted, and it is ordered again;
//      once more when there are none, because the memory of a process that was killed goes later
//      than its lease. So it is when a copier left while the order was on its way, at most
//      kMaxAttempts times
//
// A client that goes away takes its waiting loads with it; the copier is told to stop the one under
// way, and its answer goes to nobody.
//
// A tensor:
//
//   (none) ──publish──> indexed ──evict, make_room──> unindexed ──last lease ends──> (none)
//                         └──evict, make_room, without a lease on it───────────────────┘
//
// Everything that comes in may be wrong, from clients as from copiers: it ends as an error reply,
// never as an exception. Not thread-safe.
#pragma once

#include "core/base/posix.h"
#include "tools/gpu/copier/transfer.h"
#include "tools/gpu/protocol/item.h"
#include "tools/gpu/protocol/message.h"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stfs::gpu {

using ClientId = std::uint64_t;

// Sends replies and orders. Implemented by the holder; its functions must not reenter Residency.
class Outlet {
 public:
  Outlet() = default;
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;
  virtual ~Outlet() = default;

  virtual void reply(ClientId client, const Json& body, std::vector<UniqueFd> descriptors) = 0;
  // Sends an order to the copier of a device ("cuda:0"). Starts the copier if it does not run.
  virtual void order(const std::string& uuid, const std::string& device, const Json& body) = 0;
  // Closes the descriptors of memory that nobody needs. It takes long where it frees device memory.
  virtual void discard(std::vector<UniqueFd> descriptors) = 0;
};

class Residency {
 public:
  using Clock = std::chrono::steady_clock;

  // memory_limit: bytes to hold per device; 0: no limit. `outlet` outlives this.
  Residency(Outlet& outlet, std::uint64_t memory_limit);
  ~Residency();

  void connected(ClientId client, pid_t pid);
  void disconnected(ClientId client);
  void request(ClientId client, const Json& body);

  void answer(const std::string& uuid, Message message);
  // The copier of a device has ended. `why` is text for the user; empty when the copier was idle.
  void copier_gone(const std::string& uuid, const std::string& why);
  // The copier of a device cannot load: fails the running load with this error text.
  void copier_useless(const std::string& uuid, const std::string& line);

  // No tensors, no clients, no loads.
  bool is_idle() const;
  // A lease, or a load.
  bool is_in_use() const;
  // Whether a copier of the device has an order.
  bool is_loading(const std::string& uuid) const;

 private:
  struct Segment {
    std::string uuid;
    UniqueFd fd = {};
    std::uint64_t bytes = 0;
    std::set<std::uint64_t> tenants = {};  // tensors in it
  };
  struct Tensor {
    std::string uuid;
    std::string key;
    std::string label;
    DType dtype = DType::kU8;
    std::vector<std::uint64_t> shape;
    std::uint64_t bytes = 0;
    std::uint64_t segment = 0;  // 0: the tensor has no bytes
    std::uint64_t offset = 0;
    bool pinned = false;
    bool indexed = true;
    std::uint64_t users = 0;  // leases, and loads that need it
    std::uint64_t used = 0;   // value of uses_ at the last load or get
    Clock::time_point used_at = {};
  };
  struct Load {
    ClientId client = 0;
    std::string uuid;
    std::string device;
    std::vector<Item> items;
    bool pin = false;
    bool lease = false;
    bool only_resident = false;
    CopyOptions options = {};         // for the copier
    std::vector<std::size_t> copied;  // indices of the items that the copier copies
    Layout layout;                    // of the copied items
    std::uint64_t id = 0;             // of the order; 0: none was sent
    unsigned attempts = 0;
    bool waits_for_room = false;  // the copier tries for a moment before it says that there is none
    bool begun = false;           // the copier has sent a message about it
    std::vector<std::uint64_t> held;  // resident tensors that must stay until the load ends
    std::vector<std::string> warnings;
    std::uint64_t copied_bytes = 0;
  };
  struct Client {
    pid_t pid = 0;
    bool has_said_hello = false;                    // of our version
    std::map<std::uint64_t, std::uint64_t> leases;  // tensor -> count
  };
  struct Room {
    std::uint64_t held = 0;
    std::uint64_t evictable = 0;
  };

  void dispatch(ClientId client, const Json& body);
  void hello(ClientId client, const Json& body);
  void load(ClientId client, const Json& body);
  void segments(ClientId client, const Json& body);
  void release(ClientId client, const Json& body);
  void evict(ClientId client, const Json& body);
  void pin(ClientId client, const Json& body);
  void list(ClientId client);
  void status(ClientId client);

  void advance(const std::string& uuid);    // starts the next load of a device
  void end_first(const std::string& uuid);  // removes the running load
  void let_go(Load& load);
  bool begin(Load& load);  // false: the load has ended
  void order(Load& load);
  // `needed` and `free` are of OutOfDeviceMemory. False: there is no room to be made.
  bool order_again(Load& load, std::uint64_t needed, std::uint64_t free);
  void finish(Load& load);
  void publish(Load& load, Message message);
  void fail(const Load& load, int status, const std::string& text);
  void no_room(const Load& load, std::uint64_t needed, std::uint64_t free);

  std::optional<std::uint64_t> find(const std::string& uuid, const std::string& key) const;
  std::vector<std::uint64_t> selected(const Json& body) const;  // by the request's filter
  void remove(std::uint64_t id);                                // from the index
  void unlease(std::uint64_t id, std::uint64_t count);
  void drop_if_unused(std::uint64_t id);
  void discard(UniqueFd descriptor);
  Room room(const std::string& uuid) const;
  // Evicts least recently used segments until `bytes` are free. Returns false, and evicts nothing,
  // when too few bytes are evictable.
  bool make_room(const std::string& uuid, std::uint64_t bytes);
  bool evictable(const Segment& segment, std::uint64_t& last_used) const;
  Json row(std::uint64_t id) const;
  UniqueFd copy_of(std::uint64_t segment) const;  // of its descriptor; empty without room

  Outlet& outlet_;
  std::uint64_t memory_limit_;
  std::map<std::uint64_t, Segment> segments_;
  std::map<std::uint64_t, Tensor> tensors_;
  std::map<std::pair<std::string, std::string>, std::uint64_t> index_;  // (uuid, key)
  std::map<ClientId, Client> clients_;
  std::map<std::string, std::deque<Load>> loads_;  // by device; the first is running
  std::uint64_t next_id_ = 1;
  std::uint64_t uses_ = 0;
};

}  // namespace stfs::gpu
