// The tensors that this process uses: what libstfs_gpu is made of.
//
//   TensorLeases   a connection to the holder, made when it is needed; what was inherited
//   LeasedTensor   one tensor, mapped here; a lease on it as long as it is referred to
//
// Both are referred to from several places whose ends come in any order (handles of callers,
// arrays of other libraries), so they are shared: the last one unmaps, and gives the lease back.
//
// Thread safety: all of it may be used by many threads; calls of acquire() take turns, and the end
// of a LeasedTensor never waits for one. In a child of fork() acquire() throws kUsage, and ends do
// nothing: the connection is the parent's, and the device may not work here at all.
//
// Ends allocate nothing, so that they cannot fail. A lease is of one connection: when the holder
// has died, acquire() connects to the next one, what is mapped stays mapped, and the next holder is
// not told of the end of leases that it never gave.
#pragma once

#include "tools/gpu/client/client.h"
#include "tools/gpu/client/selection.h"
#include "tools/gpu/copier/item.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/library/inherited.h"

#include <sys/types.h>

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

// A lease, in the terms in which the holder is told of its end.
struct Lease {
  std::uint64_t connection = 0;  // which one it was taken on; 0: none was
  std::uint64_t id = 0;          // Resident::id
};

// Immutable.
class LeasedTensor {
 public:
  LeasedTensor() = default;
  LeasedTensor(const LeasedTensor&) = delete;
  LeasedTensor& operator=(const LeasedTensor&) = delete;
  ~LeasedTensor();

  const std::string& name() const { return name_; }
  const std::string& label() const { return label_; }
  const std::string& key() const { return key_; }
  DType dtype() const { return dtype_; }
  const std::vector<std::uint64_t>& shape() const { return shape_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t address() const { return address_; }  // 0 when it has no bytes
  const DeviceInfo& device() const { return device_; }
  bool is_on_host() const { return device_.id == "cpu"; }
  int ordinal() const;  // N of "cuda:N"; 0 of the host

 private:
  friend class TensorLeases;

  std::string name_;
  std::string label_;
  std::string key_;
  DType dtype_ = DType::kU8;
  std::vector<std::uint64_t> shape_;
  std::uint64_t bytes_ = 0;
  std::uint64_t address_ = 0;
  DeviceInfo device_;
  // In memory of its own: a child of fork() leaves it as it is.
  struct Kept {
    std::shared_ptr<const MappedSegment> segment;
    std::shared_ptr<TensorLeases> leases;  // when the holder leased it to us
  };
  std::unique_ptr<Kept> kept_ = std::make_unique<Kept>();
  std::forward_list<Lease> lease_;  // one, when the holder leased it; its end moves it elsewhere
  pid_t process_ = 0;
};

struct AcquireRequest {
  std::vector<std::string> names;  // as Selection takes them; none: all that was inherited
  std::optional<std::string> device;
  SelectionOptions selection;
  bool load_if_missing = false;
  bool verify = false;
  bool pin = false;
};

class TensorLeases : public std::enable_shared_from_this<TensorLeases> {
 public:
  using Tensors = std::vector<std::shared_ptr<const LeasedTensor>>;

  // Reads what was inherited, and connects unless something was. `socket` empty: this user's
  // holder; `program` as Client::connect() has it. Throws Error.
  static std::shared_ptr<TensorLeases> connect(std::string socket, std::string program);

  TensorLeases(const TensorLeases&) = delete;
  TensorLeases& operator=(const TensorLeases&) = delete;
  ~TensorLeases() = default;

  // All of them or none, on one device, in the order asked for. Throws Error.
  Tensors acquire(const AcquireRequest& request);

  // Ends them, in one message to the holder.
  void release(Tensors tensors) noexcept;

 private:
  friend class LeasedTensor;

  // What was asked for: a tensor that was inherited, or one for the holder.
  struct Wanted {
    const InheritedTensor* inherited = nullptr;
    std::optional<Item> item;

    std::string label() const { return inherited != nullptr ? inherited->label : item->label(); }
  };

  TensorLeases(std::string socket, std::string program);

  Client& client();  // connected; anew when the holder has ended since the last call
  std::vector<Wanted> resolve(const AcquireRequest& request);
  const InheritedTensor* find_inherited(const std::multimap<std::string_view, std::size_t>& index,
                                        const std::string& name,
                                        const std::optional<std::string>& device) const;
  DeviceInfo device_of(std::span<const Wanted> wanted, const AcquireRequest& request);
  std::shared_ptr<const MappedSegment> map(const DeviceInfo& device, std::int64_t segment, int fd,
                                           std::uint64_t bytes);
  void lease(const DeviceInfo& device, std::span<const Wanted> wanted,
             const AcquireRequest& request, Tensors& tensors);
  std::shared_ptr<LeasedTensor> map_inherited(const DeviceInfo& device,
                                              const InheritedTensor& inherited);

  // These allocate nothing.
  void give_back(std::forward_list<Lease> lease) noexcept;
  void send_given_back() noexcept;

  const std::string socket_;
  const std::string program_;
  const pid_t process_;
  std::optional<std::vector<InheritedTensor>> inherited_;
  std::multimap<std::string_view, std::size_t> inherited_keys_;
  std::multimap<std::string_view, std::size_t> inherited_labels_;

  std::mutex calls_;  // held for a whole call to the holder; guards what follows
  std::optional<Client> client_;
  std::uint64_t connection_ = 0;  // which one client_ is, counted from 1
  Selection selection_;
  // Mapped once, however many tensors lie in it: by the device's UUID and the holder's number, or
  // the inherited descriptor as a negative one.
  std::map<std::pair<std::string, std::int64_t>, std::weak_ptr<const MappedSegment>> segments_;

  std::mutex ends_;  // held for moments, also by who holds calls_; guards what follows
  // Leases that have ended and that the holder has not been told of. It counts them, one for each
  // tensor of each acquire.
  std::forward_list<Lease> given_back_;
  unsigned releases_ = 0;  // that are under way
};

}  // namespace stfs::gpu
