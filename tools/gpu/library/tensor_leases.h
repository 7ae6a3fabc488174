// The tensors that this process uses, for stfs_gpu.h.
//
//   TensorLeases   a connection to the holder, made on demand; the inherited tensors
//   LeasedTensor   one mapped tensor, with its lease
//
// Both are shared_ptr: handles of callers and arrays of other libraries refer to them and end in
// any order. The last reference unmaps the tensor and ends the lease:
//
//     none ──1──> held ──2──> given back ──3──> ended
//                   └──────4──────┴──────4────> ended
//
//   1  acquire(), with the holder's answer: lease_ has the id and the connection
//   2  ~LeasedTensor: unmaps the segment (mappings.h), moves lease_ to given_back_
//   3  send_given_back(), on any thread that gets calls_: tells the holder
//   4  the end of the connection, usually the holder's death: the holder knows no such lease any
//      more. The mapping stays, acquire() connects to the next holder, and step 3 skips the lease.
//
// Thread safety: all of it. Calls of acquire() take turns; ~LeasedTensor never waits for one, and
// allocates nothing, so it cannot fail.
//
// fork(2): in a child, acquire() throws kUsage and destructors do nothing: the connection is the
// parent's, and CUDA may not work in the child.
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

// A lease, as release() names it to the holder.
struct Lease {
  std::uint64_t connection = 0;  // TensorLeases::connection_ at step 1; 0: no lease
  std::uint64_t id = 0;          // Resident::id
};

// Used through pointers to const: immutable, except that its destructor moves the lease.
class LeasedTensor : public TensorFacts {
 public:
  LeasedTensor(TensorFacts facts, DeviceInfo device)
      : TensorFacts(std::move(facts)), device_(std::move(device)) {}
  LeasedTensor(const LeasedTensor&) = delete;
  LeasedTensor& operator=(const LeasedTensor&) = delete;
  ~LeasedTensor();

  std::uint64_t address() const { return address_; }  // 0 when it has no bytes
  const DeviceInfo& device() const { return device_; }
  bool is_on_host() const { return device_.id == "cpu"; }
  int ordinal() const;  // N of "cuda:N"; 0 for the host

 private:
  friend class TensorLeases;

  std::uint64_t address_ = 0;
  DeviceInfo device_;
  // Behind a pointer: a child of fork(2) leaks it, so that nothing is unmapped or released twice.
  struct State {
    std::shared_ptr<const MappedSegment> segment;
    std::shared_ptr<TensorLeases> leases;  // null for an inherited tensor
  };
  std::unique_ptr<State> state_ = std::make_unique<State>();
  std::forward_list<Lease> lease_;  // one, or none for an inherited tensor
  const std::uint64_t process_ = this_process();
};

struct AcquireRequest {
  std::vector<std::string> names;  // for Selection; empty: all inherited tensors
  std::optional<std::string> device;
  SelectionOptions selection;
  bool load_if_missing = false;
  bool verify = false;
  bool pin = false;
};

class TensorLeases : public std::enable_shared_from_this<TensorLeases> {
 public:
  using Tensors = std::vector<std::shared_ptr<const LeasedTensor>>;

  // Reads the inherited tensors; without any, connects to the holder. `socket` empty: this user's
  // holder; `program` as for Client::connect(). Throws Error.
  static std::shared_ptr<TensorLeases> connect(std::string socket, std::string program);

  TensorLeases(const TensorLeases&) = delete;
  TensorLeases& operator=(const TensorLeases&) = delete;
  ~TensorLeases() = default;

  // Acquires all tensors or none, on one device, in request order. Throws Error.
  Tensors acquire(const AcquireRequest& request);

  // Drops the references, and sends the ended leases to the holder together.
  void release(Tensors tensors) noexcept;

 private:
  friend class LeasedTensor;

  // One requested tensor: `inherited`, or `item` for the holder.
  struct Wanted {
    const InheritedTensor* inherited = nullptr;
    std::optional<Item> item;

    std::string label() const { return inherited != nullptr ? inherited->label : item->label(); }
  };

  TensorLeases(std::string socket, std::string program);

  Client& client();  // connects again when the holder has ended
  std::vector<Wanted> resolve(const AcquireRequest& request);
  const InheritedTensor* find_inherited(const std::multimap<std::string_view, std::size_t>& index,
                                        const std::string& name,
                                        const std::optional<std::string>& device) const;
  DeviceInfo device_of(std::span<const Wanted> wanted, const AcquireRequest& request);
  std::shared_ptr<const MappedSegment> map(const DeviceInfo& device, std::int64_t segment, int fd,
                                           std::uint64_t bytes);
  using Segments = std::map<std::uint64_t, std::shared_ptr<const MappedSegment>>;  // by number
  Segments map_all(const DeviceInfo& device, Loaded& loaded);
  // `items`: those of `wanted`.
  void lease(const DeviceInfo& device, std::span<const Wanted> wanted, std::span<const Item> items,
             const AcquireRequest& request, Tensors& tensors);
  std::shared_ptr<LeasedTensor> map_inherited(const DeviceInfo& device,
                                              const InheritedTensor& inherited);

  // Both allocate nothing.
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
  std::uint64_t connection_ = 0;  // number of client_, from 1
  Selection selection_;
  // Each segment is mapped once. The key is the device's UUID and the holder's number, or -1 - fd
  // for an inherited descriptor.
  std::map<std::pair<std::string, std::int64_t>, std::weak_ptr<const MappedSegment>> segments_;
  Mappings mappings_;

  std::mutex ends_;  // held briefly, also under calls_; guards the members below
  // State "given back". The holder counts leases: one per tensor and acquire.
  std::forward_list<Lease> given_back_;
  unsigned releases_ = 0;  // running release() calls
};

}  // namespace stfs::gpu
