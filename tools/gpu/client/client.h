// A connection to the holder: the process that keeps what was loaded.
//
// The connection is a lease: what was acquired on it stays on the device until it is released, or
// the connection ends, however it ends.
//
// Thread safety: one call at a time. Every call throws Error: kUsage for what cannot be meant,
// kUnreadable for sources, kDeviceFailed for devices and for a holder that has gone.
#pragma once

#include "core/base/posix.h"
#include "tools/gpu/copier/item.h"
#include "tools/gpu/copier/message.h"
#include "tools/gpu/device/device.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs::gpu {

// Where the holder of this user listens: $STFS_GPU_SOCKET, or stfs-gpu.sock in $XDG_RUNTIME_DIR, or
// in /run/user/UID, or in /tmp/stfs-gpu-UID, which is made. Throws kDeviceFailed when that
// directory is another user's, or open to others.
std::string holder_socket_path();

struct LoadRequest {
  bool verify = false;
  bool pin = false;
  bool lease = false;           // keep them while this connection lasts, and hand over descriptors
  bool only_resident = false;   // fail rather than copy
  std::uint64_t keep_free = 0;  // bytes of the device that stay free
  unsigned workers = 0;         // as TransferOptions
  std::size_t tile_bytes = 0;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes
};

// A tensor that is on a device.
struct Resident {
  std::uint64_t id = 0;  // the holder's number; a tensor that is loaded again gets another
  std::string key;
  std::string label;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::string device_uuid;
  std::uint64_t segment = 0;  // the holder's number for it; 0: none, when it has no bytes
  std::uint64_t offset = 0;   // in the segment
  bool pinned = false;
  std::vector<std::int64_t> users;  // processes that lease it
  std::uint64_t idle_seconds = 0;   // since it was last asked for
  int holder_fd = -1;               // the segment's descriptor in the holder
  std::uint64_t segment_bytes = 0;
};

struct Loaded {
  std::vector<Resident> tensors;               // in the order asked for
  std::map<std::uint64_t, UniqueFd> segments;  // by number, when leased
  std::uint64_t copied_bytes = 0;              // what was not resident before
  std::vector<std::string> warnings;           // of conversions, a line each
};

// Which residents an operation means.
struct ResidentFilter {
  std::optional<std::string> device_uuid;
  std::vector<std::string> labels;  // Item::label(); with `all` false
  bool all = false;
};

// What evict did.
struct Evicted {
  std::uint64_t count = 0;
  std::uint64_t pinned = 0;  // left alone for that
  std::uint64_t used = 0;    // of count: their memory goes when their users do
};

struct HolderStatus {
  std::int64_t pid = 0;
  std::uint64_t memory_limit = 0;  // bytes a device; 0: none
  std::uint64_t clients = 0;
  struct Held {
    std::uint64_t bytes = 0;
    std::uint64_t evictable = 0;
  };
  std::map<std::string, Held> devices;  // by UUID
};

class Client {
 public:
  // Connects to the holder that listens at `socket`, which must be of this version; empty: at
  // holder_socket_path(). Without a holder: starts one there (`program` is stfs-gpu; it becomes a
  // daemon), or returns nothing when `program` is empty.
  static std::optional<Client> connect(const std::string& program, const std::string& socket = "");

  Loaded load(const DeviceInfo& device, std::span<const Item> items, const LoadRequest& request);
  // Ends leases, by Resident::id; one for each time that it was leased. Allocates nothing: it is
  // called where nothing may fail. When the connection has ended, so have its leases.
  void release(std::span<const std::uint64_t> ids) noexcept;

  // Whether the holder is there and waits for a call. False for good when a call ended without its
  // answer: that could be taken for the next one's.
  bool is_open() const;

  std::vector<Resident> list();
  Evicted evict(const ResidentFilter& filter, bool force);       // `force`: pinned ones too
  std::uint64_t pin(const ResidentFilter& filter, bool pinned);  // how many are meant
  HolderStatus status();

 private:
  explicit Client(UniqueFd socket);

  void say_hello();  // throws kDeviceFailed when the holder is of another version
  // The answer to a request, which is no error.
  Message ask(const Json& body, const LoadRequest* request = nullptr);

  Channel channel_;
  bool is_in_step_ = true;  // every call has had its answer
};

}  // namespace stfs::gpu
