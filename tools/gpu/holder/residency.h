// The holder's state: the resident tensors, without the holder's sockets and processes.
//
//   client  --request-->  Residency  --order-->  copier
//           <--reply----             <--answer--
//
// A tensor is in the index if and only if all its bytes are on the device. It leaves the index when
// it is evicted. Its memory is freed when, in addition, the last lease on it has ended and its
// segment has no other tenant. Loads of a device run one after the other, each as a whole or not at
// all. If all tensors of a request are resident, it never waits for a load.
//
// The states of a load of a device:
//
//   asked ──1──> waiting ──2──> ordered ──3──> begun ──4──> ended
//     │                           │ ▲  └──────────┴───5──────┘
//     └──1──> ended               └─┘6
//
//   1  A client sends a request. The load ends at once if all tensors are resident, or if the
//      request is refused.
//   2  The load before it has ended, and advance() orders all tensors that are missing. The load
//      ends instead if no tensor is missing any more, or if there is too little memory.
//   3  The copier sends its first answer, which is progress.
//   4  The copier sends its last answer. The copied tensors are published, and the client gets the
//      result.
//   5  The copier reports an error or ends, or the device has too little memory. The client gets
//      the reason.
//   6  The device is full: order_again() evicts other tensors and orders the load again. If no
//      tensor can be evicted, it orders the load once more, because the memory of a process that
//      was killed is freed later than its lease ends. The load is also ordered again, at most
//      kMaxAttempts times, if the copier exited while the order was on its way.
//
// If a client disconnects, its waiting loads are dropped. If one of its loads is running, the
// copier gets an order to stop, and its answer is discarded.
//
// The states of a tensor:
//
//   (none) ──publish──> indexed ──evict, make_room──> unindexed ──last lease ends──> (none)
//                         └──evict, make_room, without a lease on it───────────────────┘
//
// All input may be wrong, from clients as well as from copiers. Wrong input causes an error reply,
// never an exception. Thread safety: one thread at a time.
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

// Sends replies and orders. The holder implements it; its functions must not call Residency.
class MessageSink {
 public:
  MessageSink() = default;
  MessageSink(const MessageSink&) = delete;
  MessageSink& operator=(const MessageSink&) = delete;
  virtual ~MessageSink() = default;

  virtual void reply(ClientId client, const Json& body, std::vector<UniqueFd> descriptors) = 0;
  // Sends an order to the copier of a device ("cuda:0"). Starts the copier if it is not running.
  virtual void order(const std::string& uuid, const std::string& device, const Json& body) = 0;
  // Closes descriptors of memory that nothing needs any more. This takes long if it frees device
  // memory.
  virtual void discard(std::vector<UniqueFd> descriptors) = 0;
};

class Residency {
 public:
  using Clock = std::chrono::steady_clock;

  // `memory_limit` is in bytes per device; 0: no limit. `outlet` must outlive this.
  Residency(MessageSink& outlet, std::uint64_t memory_limit);
  ~Residency();

  void connected(ClientId client, pid_t pid);
  void disconnected(ClientId client);
  void request(ClientId client, const Json& body);

  void answer(const std::string& uuid, Message message);
  // The copier of a device has ended. `why` is text for the user, or "" if the copier was idle.
  void copier_gone(const std::string& uuid, const std::string& why);
  // The copier of a device cannot load. Fails the running load with `line` as the error text.
  void copier_useless(const std::string& uuid, const std::string& line);

  // Returns true if it has neither tensors nor clients nor loads.
  bool is_idle() const;
  // Returns true if there is a lease or a load.
  bool is_in_use() const;
  // Returns true if the copier of the device has an order.
  bool is_loading(const std::string& uuid) const;

 private:
  struct Segment {
    std::string uuid;
    UniqueFd fd = {};
    std::uint64_t bytes = 0;
    std::set<std::uint64_t> tenants = {};  // the tensors in it
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
    std::uint64_t users = 0;  // the number of leases, and of loads that need it
    std::uint64_t used = 0;   // the value of uses_ at the last load or get
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
    CopyOptions options = {};         // passed to the copier
    std::vector<std::size_t> copied;  // indices of the items that the copier has to copy
    Layout layout;                    // layout of the copied items
    std::uint64_t id = 0;             // the order's number; 0: no order was sent
    unsigned attempts = 0;
    bool waits_for_room = false;      // the copier retries for a moment if it lacks memory
    bool begun = false;               // the copier has sent a message about this load
    std::vector<std::uint64_t> held;  // resident tensors that must stay until the load ends
    std::vector<std::string> warnings;
    std::uint64_t copied_bytes = 0;
  };
  struct Client {
    pid_t pid = 0;
    bool has_said_hello = false;                    // with our version
    std::map<std::uint64_t, std::uint64_t> leases;  // tensor id -> count
  };
  // Bytes of a device's segments.
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
  bool begin(Load& load);  // returns false if the load has ended
  void order(Load& load);
  // `needed` and `free` are from OutOfDeviceMemory. Returns false if no memory can be freed.
  bool order_again(Load& load, std::uint64_t needed, std::uint64_t free);
  void finish(Load& load);
  void publish(Load& load, Message message);
  void fail(const Load& load, int status, const std::string& text);
  void no_room(const Load& load, std::uint64_t needed, std::uint64_t free);

  std::optional<std::uint64_t> find(const std::string& uuid, const std::string& key) const;
  // Returns the ids of the indexed tensors that the request selects.
  std::vector<std::uint64_t> selected(const Json& body) const;
  void remove(std::uint64_t id);  // removes it from the index
  void unlease(std::uint64_t id, std::uint64_t count);
  void drop_if_unused(std::uint64_t id);
  void discard(UniqueFd descriptor);
  Room room(const std::string& uuid) const;
  // Evicts the least recently used segments until `bytes` bytes are freed. Returns false, and
  // evicts nothing, if fewer bytes are evictable.
  bool make_room(const std::string& uuid, std::uint64_t bytes);
  // Returns true if the segment can be evicted, and raises `last_used` to its last use.
  bool evictable(const Segment& segment, std::uint64_t& last_used) const;
  Json row(std::uint64_t id) const;
  // Returns a duplicate of a segment's descriptor, or an empty one on failure.
  UniqueFd copy_of(std::uint64_t segment) const;

  MessageSink& outlet_;
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
