// The tensors that this process uses through stfs_gpu.h.
//
//   TensorLeases   the connection to the holder, opened on demand, and the inherited tensors
//   LeasedTensor   one mapped tensor with its lease
//
// Both are owned by shared_ptr, because handles of callers and arrays of other libraries refer to
// them and end in any order. The last reference to a tensor unmaps it and ends its lease:
//
//     none ──1──> held ──2──> given back ──3──> ended
//                   └──────4──────┴──────4────> ended
//
//   1  acquire() receives the holder's answer and sets lease_ to the lease and its connection.
//   2  ~LeasedTensor() unmaps the segment (mappings.h) and moves lease_ to given_back_.
//   3  send_given_back(), on any thread that can lock calls_, sends a release to the holder.
//   4  The connection ends, usually because the holder ended, and the lease with it. The mapping
//      stays, acquire() connects to the next holder, and step 3 skips the lease.
//
// Thread safety: all members may be called from any thread. Calls of acquire() take turns.
// ~LeasedTensor() never waits for them and allocates no memory, so it cannot fail.
//
// fork(2): in a child, acquire() throws Error kUsage and destructors do nothing, because the
// connection belongs to the parent and CUDA may not work in the child.
#pragma once

#include "core/base/forks.h"
#include "tools/gpu/client/client.h"
#include "tools/gpu/client/selection.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/library/inherited.h"
#include "tools/gpu/library/mappings.h"
#include "tools/gpu/protocol/item.h"

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::gpu {

class TensorLeases;

// Identifies a lease to the holder when it is released.
struct Lease {
  std::uint64_t connection = 0;  // TensorLeases::connection_ at step 1; 0: not leased
  std::uint64_t id = 0;          // Resident::id
};

// Used through pointers to const. Immutable, except that the destructor moves the lease.
class LeasedTensor : public TensorFacts {
 public:
  LeasedTensor(TensorFacts facts, DeviceInfo device)
      : TensorFacts(std::move(facts)), device_(std::move(device)) {}
  LeasedTensor(const LeasedTensor&) = delete;
  LeasedTensor& operator=(const LeasedTensor&) = delete;
  ~LeasedTensor();

  std::uint64_t address() const { return address_; }  // 0 if the tensor has no bytes
  const DeviceInfo& device() const { return device_; }
  bool is_on_host() const { return device_.id == "cpu"; }
  int ordinal() const;  // N of "cuda:N"; 0 for host memory

 private:
  friend class TensorLeases;

  std::uint64_t address_ = 0;
  DeviceInfo device_;
  // A unique_ptr, so that a child of fork(2) can leak it and nothing is unmapped or released twice.
  struct State {
    std::shared_ptr<const MappedSegment> segment;
    std::shared_ptr<TensorLeases> leases;  // null for an inherited tensor
  };
  std::unique_ptr<State> state_ = std::make_unique<State>();
  std::forward_list<Lease> lease_;  // one lease; empty for an inherited tensor
  const std::uint64_t process_ = this_process();
};

struct AcquireRequest {
  std::vector<std::string> names;  // as for Selection; empty: all inherited tensors
  std::optional<std::string> device;
  SelectionOptions selection;
  bool load_if_missing = false;
  bool verify = false;
  bool pin = false;
};

class TensorLeases : public std::enable_shared_from_this<TensorLeases> {
 public:
  using Tensors = std::vector<std::shared_ptr<const LeasedTensor>>;

  // Reads the inherited tensors. Without any, connects to the holder at `socket`; "": this
  // user's holder. `program` is the path of stfs-gpu, as for Client::connect(). Throws Error.
  static std::shared_ptr<TensorLeases> connect(std::string socket, std::string program);

  TensorLeases(const TensorLeases&) = delete;
  TensorLeases& operator=(const TensorLeases&) = delete;
  ~TensorLeases() = default;

  // Acquires all tensors or none, on one device, in the order of the request. Throws Error.
  Tensors acquire(const AcquireRequest& request);

  // Drops the references and reports the ended leases to the holder together.
  void release(Tensors tensors) noexcept;

 private:
  friend class LeasedTensor;

  // A requested tensor: either `inherited` is set, or `item`, which the holder has to provide.
  struct Wanted {
    const InheritedTensor* inherited = nullptr;
    std::optional<Item> item;

    std::string label() const { return inherited != nullptr ? inherited->label : item->label(); }
  };

  TensorLeases(std::string socket, std::string program);

  Client& client();  // connects again if the holder has ended
  std::vector<Wanted> resolve(const AcquireRequest& request);
  const InheritedTensor* find_inherited(const std::multimap<std::string_view, std::size_t>& index,
                                        const std::string& name,
                                        const std::optional<std::string>& device) const;
  DeviceInfo device_of(std::span<const Wanted> wanted, const AcquireRequest& request);
  std::shared_ptr<const MappedSegment> map(const DeviceInfo& device, std::int64_t segment, int fd,
                                           std::uint64_t bytes);
  using Segments = std::map<std::uint64_t, std::shared_ptr<const MappedSegment>>;  // by number
  Segments map_all(const DeviceInfo& device, Loaded& loaded);
  // `items` are the items of `wanted`, in the same order.
  void lease(const DeviceInfo& device, std::span<const Wanted> wanted, std::span<const Item> items,
             const AcquireRequest& request, Tensors& tensors);
  std::shared_ptr<LeasedTensor> map_inherited(const DeviceInfo& device,
                                              const InheritedTensor& inherited);

  // give_back() and send_given_back() allocate no memory.
  void give_back(std::forward_list<Lease> lease) noexcept;
  void send_given_back() noexcept;

  const std::string socket_;
  const std::string program_;
  const std::uint64_t process_;
  std::optional<std::vector<InheritedTensor>> inherited_;
  std::multimap<std::string_view, std::size_t> inherited_keys_;
  std::multimap<std::string_view, std::size_t> inherited_labels_;

  std::mutex calls_;  // held during a call to the holder; guards the members below
  std::optional<Client> client_;
  std::uint64_t connection_ = 0;  // the number of client_, counted from 1
  Selection selection_;
  // Maps each segment once. The key is the device's UUID and the holder's number of the segment;
  // for an inherited descriptor the number is -1 - fd.
  std::map<std::pair<std::string, std::int64_t>, std::weak_ptr<const MappedSegment>> segments_;
  Mappings mappings_;

  std::mutex ends_;  // held briefly, also under calls_; guards the members below
  // Leases in the state "given back". The holder counts one lease per tensor and acquire.
  std::forward_list<Lease> given_back_;
  unsigned releases_ = 0;  // the number of release() calls that are running
};

}  // namespace stfs::gpu
