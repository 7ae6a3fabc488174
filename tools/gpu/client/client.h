// A connection to the holder, the process that keeps loaded tensors in device memory.
//
// The connection owns leases: a leased tensor stays on the device until the client releases it or
// the connection ends, for any reason.
//
// Thread safety: one call at a time. Every call throws Error: kUsage for an invalid request,
// kUnreadable for a source that cannot be read, and kDeviceFailed if a device fails or the holder
// has ended.
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

// Returns the path of the socket of this user's holder: $STFS_GPU_SOCKET, or stfs-gpu.sock in
// $XDG_RUNTIME_DIR, in /run/user/UID or in /tmp/stfs-gpu-UID, which it creates. Throws Error
// kDeviceFailed if that directory belongs to another user or another user can write to it.
std::string holder_socket_path();

struct LoadRequest : CopyOptions {
  bool pin = false;
  bool lease = false;          // lease the tensors to this connection and send descriptors
  bool only_resident = false;  // fail if a tensor is not resident
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes
};

// A tensor that is on a device.
struct Resident {
  std::uint64_t id = 0;  // the holder's number for it; a reload gets a new one
  std::string key;
  std::string label;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::string device_uuid;
  std::uint64_t segment = 0;  // the holder's number for it; 0: the tensor has no bytes
  std::uint64_t offset = 0;   // the position in the segment, in bytes
  bool pinned = false;
  std::vector<std::int64_t> users;  // processes with a lease on it
  std::uint64_t idle_seconds = 0;   // since the last load or get
  int holder_fd = -1;               // the number of the segment's descriptor in the holder
  std::uint64_t segment_bytes = 0;
};

struct Loaded {
  std::vector<Resident> tensors;        // in the order of the request
  std::vector<std::uint64_t> segments;  // all leased segments, each once
  // For the first of `segments`: see Client::descriptors().
  std::map<std::uint64_t, UniqueFd> descriptors;
  std::uint64_t copied_bytes = 0;     // the size of the tensors that were not resident
  std::vector<std::string> warnings;  // one line each, such as about conversions
};

// Selects resident tensors.
struct ResidentFilter {
  std::optional<std::string> device_uuid;
  std::vector<std::string> labels;  // values of Item::label(); unused if `all` is true
  bool all = false;
};

// The result of evict().
// The number of evicted tensors.
struct Evicted {
  std::uint64_t count = 0;
  std::uint64_t pinned = 0;  // not evicted, because they are pinned
  std::uint64_t used = 0;    // of the evicted tensors: leased, so freed when the last lease ends
};

struct HolderStatus {
  std::int64_t pid = 0;
  std::uint64_t memory_limit = 0;  // bytes per device; 0: no limit
  std::uint64_t clients = 0;
  struct Held {
    std::uint64_t bytes = 0;
    std::uint64_t evictable = 0;
  };
  std::map<std::string, Held> devices;  // by UUID
};

class Client {
 public:
  // Connects to the holder at `socket`, or at holder_socket_path() if `socket` is "". If there is
  // no holder, starts `program` (stfs-gpu) as a daemon, or returns nullopt if `program` is "".
  // Throws Error kDeviceFailed if the holder has another version of the protocol.
  static std::optional<Client> connect(const std::string& program, const std::string& socket = "");

  Loaded load(const DeviceInfo& device, std::span<const Item> items, const LoadRequest& request);
  // Returns the descriptors of at most kSegmentsAtOnce segments that this client leases, by number.
  // Raises this process's soft limit of open files if they do not fit into it.
  std::map<std::uint64_t, UniqueFd> descriptors(std::span<const std::uint64_t> segments);
  // Ends one lease for each id (Resident::id). Allocates no memory, because destructors call it.
  // Does nothing after the connection has ended, because its leases have ended with it.
  void release(std::span<const std::uint64_t> ids) noexcept;

  // Returns true if the holder is connected and no answer is outstanding. If a call fails before
  // its answer has arrived, this stays false, because the next call would read the late answer.
  bool is_open() const;

  std::vector<Resident> list();
  // With `force` evicts pinned tensors as well.
  Evicted evict(const ResidentFilter& filter, bool force);
  // Returns how many tensors are selected.
  std::uint64_t pin(const ResidentFilter& filter, bool pinned);
  HolderStatus status();

 private:
  explicit Client(UniqueFd socket);

  void say_hello();  // throws Error kDeviceFailed for another version of the protocol
  // Returns the answer to a request. Throws the error that the holder returns.
  Message ask(const Json& body, const LoadRequest* request = nullptr);

  Channel channel_;
  bool is_in_step_ = true;  // each request has been answered
};

}  // namespace stfs::gpu
