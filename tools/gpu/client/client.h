// A connection to the holder, the process that keeps loaded tensors in device memory.
//
// The connection owns leases: a leased tensor stays on the device until the client releases it or
// the connection ends, for any reason.
//
// Thread safety: one call at a time. Every call throws Error: kUsage for an invalid request,
// kUnreadable for a source, kDeviceFailed for a device or when the holder has ended.
#pragma once

#include "core/base/posix.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/protocol/item.h"
#include "tools/gpu/protocol/message.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs::gpu {

// The path of this user's holder: $STFS_GPU_SOCKET, or stfs-gpu.sock in $XDG_RUNTIME_DIR, in
// /run/user/UID or in /tmp/stfs-gpu-UID, which is created. Throws kDeviceFailed when another user
// owns that directory or can write to it.
std::string holder_socket_path();

struct LoadRequest : CopyOptions {
  bool pin = false;
  bool lease = false;          // lease the tensors to this connection and send descriptors
  bool only_resident = false;  // fail if a tensor must be copied
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes
};

// A tensor that is on a device.
struct Resident {
  std::uint64_t id = 0;  // the holder's number; a reload gets a new one
  std::string key;
  std::string label;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::string device_uuid;
  std::uint64_t segment = 0;  // the holder's number; 0: the tensor has no bytes
  std::uint64_t offset = 0;   // in the segment
  bool pinned = false;
  std::vector<std::int64_t> users;  // processes with a lease on it
  std::uint64_t idle_seconds = 0;   // since the last load or get
  int holder_fd = -1;               // number of the segment's descriptor in the holder
  std::uint64_t segment_bytes = 0;
};

struct Loaded {
  std::vector<Resident> tensors;                  // in request order
  std::vector<std::uint64_t> segments;            // all that a lease is on, each once
  std::map<std::uint64_t, UniqueFd> descriptors;  // of the first of them: see Client::descriptors()
  std::uint64_t copied_bytes = 0;                 // of tensors that were not resident
  std::vector<std::string> warnings;              // one line each, about conversions
};

// Selects resident tensors.
struct ResidentFilter {
  std::optional<std::string> device_uuid;
  std::vector<std::string> labels;  // Item::label(); used when `all` is false
  bool all = false;
};

// The result of evict.
struct Evicted {
  std::uint64_t count = 0;
  std::uint64_t pinned = 0;  // kept because they are pinned
  std::uint64_t used = 0;    // of count: leased; freed when the last lease ends
};

struct HolderStatus {
  std::int64_t pid = 0;
  std::uint64_t memory_limit = 0;  // bytes per device; 0: none
  std::uint64_t clients = 0;
  struct Held {
    std::uint64_t bytes = 0;
    std::uint64_t evictable = 0;
  };
  std::map<std::string, Held> devices;  // by UUID
};

class Client {
 public:
  // Connects to the holder at `socket`; empty: at holder_socket_path(). Without a holder, starts
  // `program` (stfs-gpu) as a daemon; returns nothing when `program` is empty. Throws kDeviceFailed
  // when the holder speaks another version of the protocol.
  static std::optional<Client> connect(const std::string& program, const std::string& socket = "");

  Loaded load(const DeviceInfo& device, std::span<const Item> items, const LoadRequest& request);
  // Descriptors of at most kSegmentsAtOnce segments that this client leases, by number. Raises the
  // soft limit of this process to its open files where they do not fit into it.
  std::map<std::uint64_t, UniqueFd> descriptors(std::span<const std::uint64_t> segments);
  // Ends one lease for each id (Resident::id). Allocates nothing, because destructors call it. Does
  // nothing after the connection has ended: the holder has ended its leases then.
  void release(std::span<const std::uint64_t> ids) noexcept;

  // Whether the holder is connected and no answer is outstanding. A call that failed before its
  // answer came makes this false for ever: the next call would read that late answer.
  bool is_open() const;

  std::vector<Resident> list();
  Evicted evict(const ResidentFilter& filter, bool force);       // `force`: also pinned tensors
  std::uint64_t pin(const ResidentFilter& filter, bool pinned);  // returns the number selected
  HolderStatus status();

 private:
  explicit Client(UniqueFd socket);

  void say_hello();  // throws kDeviceFailed for another protocol version
  // Returns the answer to a request. Throws the error that the holder answers.
  Message ask(const Json& body, const LoadRequest* request = nullptr);

  Channel channel_;
  bool is_in_step_ = true;  // each request has got its answer
};

}  // namespace stfs::gpu
