#include "tools/gpu/library/tensor_leases.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace stfs::gpu {
namespace {

constexpr std::size_t kNamesInMessage = 8;

bool is_host(std::string_view device) { return device == "cpu" || device.starts_with("CPU-"); }

// Returns true if both names refer to the same device. Loads the driver only for two different GPU
// names.
bool is_same_device(const std::string& a, const std::string& b) {
  if (a == b) return true;
  if (is_host(a) || is_host(b)) return is_host(a) && is_host(b);
  return find_device(a).uuid == find_device(b).uuid;
}

// Returns "\"a\", \"b\" and 3 more".
std::string list_of(const std::vector<std::string>& labels) {
  std::string text;
  for (std::size_t i = 0; i < std::min(labels.size(), kNamesInMessage); ++i)
    text += (i == 0 ? "" : ", ") + in_quotes(labels[i]);
  if (labels.size() > kNamesInMessage)
    text += " and " + std::to_string(labels.size() - kNamesInMessage) + " more";
  return text;
}

[[noreturn]] void answered_for_others() {
  throw Error(ErrorCode::kDeviceFailed, "", "the holder answered for other tensors");
}

std::string device_text(const std::string& device) { return is_host(device) ? "cpu" : device; }

}  // namespace

LeasedTensor::~LeasedTensor() {
  if (this_process() != process_) {
    // After fork(2) the mapping and the connection belong to the parent, so a child leaks them.
    static_cast<void>(state_.release());
    return;
  }
  state_->segment.reset();  // unmap before the holder may free the memory
  if (state_->leases != nullptr) state_->leases->give_back(std::move(lease_));
}

int LeasedTensor::ordinal() const {
  int number = 0;
  const std::size_t colon = device_.id.find(':');
  if (colon != std::string::npos)
    std::from_chars(device_.id.data() + colon + 1, device_.id.data() + device_.id.size(), number);
  return number;
}

TensorLeases::TensorLeases(std::string socket, std::string program)
    : socket_(std::move(socket)),
      program_(std::move(program)),
      process_(this_process()),
      inherited_(inherited_tensors()) {
  for (std::size_t i = 0; inherited_ && i < inherited_->size(); ++i) {
    inherited_keys_.emplace((*inherited_)[i].key, i);
    inherited_labels_.emplace((*inherited_)[i].label, i);
  }
}

std::shared_ptr<TensorLeases> TensorLeases::connect(std::string socket, std::string program) {
  std::shared_ptr<TensorLeases> leases(new TensorLeases(std::move(socket), std::move(program)));
  if (!leases->inherited_) leases->client();
  return leases;
}

Client& TensorLeases::client() {
  if (client_ && client_->is_open()) return *client_;
  client_.reset();
  ++connection_;
  // Forget the segments of the last holder, because the next one numbers its segments from 0 again.
  std::erase_if(segments_, [](const auto& entry) { return entry.first.second >= 0; });
  client_ = Client::connect(program_, socket_);
  if (!client_) {
    throw Error(ErrorCode::kDeviceFailed, "",
                "no holder listens at " +
                    in_quotes(socket_.empty() ? holder_socket_path() : socket_) +
                    ": nothing is resident (stfs-gpu load starts one)");
  }
  return *client_;
}

TensorLeases::Tensors TensorLeases::acquire(const AcquireRequest& request) {
  if (this_process() != process_)
    throw Error(ErrorCode::kUsage, "", "the connection belongs to the parent process (fork)");
  // Runs after calls_ is unlocked: reports leases that have ended during the call or because it
  // failed.
  struct Sender {
    TensorLeases& leases;
    ~Sender() { leases.send_given_back(); }
  };
  const Sender sender{*this};
  const std::lock_guard call(calls_);
  mappings_.retry();
  for (unsigned loads = 1;; ++loads) {
    const std::vector<Wanted> wanted = resolve(request);
    std::vector<Item> items;
    for (const Wanted& one : wanted) {
      if (one.item) items.push_back(*one.item);
    }
    Tensors tensors;
    try {
      lease(device_of(wanted, request), wanted, items, request, tensors);
      return tensors;
    } catch (const Error& error) {
      if (loads == Selection::kMaxLoads || !selection_.has_moved(error, items)) throw;
    }
  }
}

const InheritedTensor* TensorLeases::find_inherited(
    const std::multimap<std::string_view, std::size_t>& index, const std::string& name,
    const std::optional<std::string>& device) const {
  const auto [begin, end] = index.equal_range(name);
  const auto found = std::find_if(begin, end, [&](const auto& entry) {
    return !device || is_same_device((*inherited_)[entry.second].device_uuid, *device);
  });
  return found == end ? nullptr : &(*inherited_)[found->second];
}

std::vector<TensorLeases::Wanted> TensorLeases::resolve(const AcquireRequest& request) {
  std::vector<Wanted> wanted;
  if (request.names.empty()) {
    if (!inherited_)
      throw Error(ErrorCode::kUsage, "",
                  std::string("no names, and no ") + kInheritedVariable +
                      ": name tensors, or start the program with stfs-gpu run");
    for (const InheritedTensor& tensor : *inherited_) wanted.push_back({&tensor, {}});
    return wanted;
  }
  const auto add = [&](std::vector<Item> items) {
    for (Item& item : items) {
      if (const auto* found = find_inherited(inherited_keys_, item.key(), request.device)) {
        wanted.push_back({found, {}});
      } else {
        wanted.push_back({nullptr, std::move(item)});
      }
    }
  };
  selection_.forget_layered();
  if (request.selection.as || request.selection.shard || !request.selection.layers.empty()) {
    add(selection_.resolve_all(request.names, request.selection));
    return wanted;
  }
  for (const std::string& name : request.names) {
    // A label finds an inherited tensor even if its source no longer exists.
    if (const auto* found = find_inherited(inherited_labels_, name, request.device)) {
      wanted.push_back({found, {}});
    } else {
      add(selection_.resolve(name));
    }
  }
  return wanted;
}

// Returns the one device where all wanted tensors are, or will be loaded. Throws Error if there is
// no such device.
DeviceInfo TensorLeases::device_of(std::span<const Wanted> wanted, const AcquireRequest& request) {
  std::map<std::string, std::set<std::string>> resident;  // key -> UUIDs
  const auto is_for_holder = [](const Wanted& one) { return one.item.has_value(); };
  if (!request.device && std::ranges::any_of(wanted, is_for_holder)) {
    for (const Resident& tensor : client().list()) resident[tensor.key].insert(tensor.device_uuid);
  }

  std::map<std::string, std::vector<std::string>> labels;  // by device
  std::vector<std::string> nowhere;
  std::optional<std::set<std::string>> common;
  for (const Wanted& one : wanted) {
    std::set<std::string> candidates;
    if (one.inherited != nullptr) {
      candidates.insert(one.inherited->device_uuid);
    } else if (request.device) {
      candidates.insert(*request.device);
    } else {
      candidates = resident[one.item->key()];
    }
    if (candidates.empty()) nowhere.push_back(one.label());
    for (const std::string& name : candidates) labels[name].push_back(one.label());
    if (!common) {
      common = candidates;
    } else {
      std::erase_if(*common, [&candidates](const std::string& name) {
        return std::ranges::none_of(
            candidates, [&name](const std::string& other) { return is_same_device(name, other); });
      });
    }
  }
  if (!nowhere.empty()) {
    throw Error(
        request.load_if_missing ? ErrorCode::kUsage : ErrorCode::kDeviceFailed, "",
        list_of(nowhere) + ": not resident" +
            (request.load_if_missing ? ", and no device is named to load to (cuda:N, a UUID or cpu)"
                                     : ": load with stfs-gpu load, or with load_if_missing"));
  }
  const bool is_elsewhere = request.device && common && !common->empty() &&
                            !is_same_device(*common->begin(), *request.device);
  if (!common || common->size() != 1 || is_elsewhere) {
    std::string text;
    for (const auto& [device, there] : labels) {
      text += (text.empty() ? "" : "; ") + list_of(there) +
              (there.size() == 1 ? " is on " : " are on ") + device_text(device);
    }
    const bool is_ambiguous = common && common->size() > 1;
    throw Error(ErrorCode::kUsage,
                is_elsewhere   ? *request.device
                : is_ambiguous ? "the tensors are on several devices"
                               : "not on one device",
                text + (is_ambiguous ? "; name one" : ""));
  }
  return find_device(*common->begin());
}

std::shared_ptr<const MappedSegment> TensorLeases::map(const DeviceInfo& device,
                                                       std::int64_t segment, int fd,
                                                       std::uint64_t bytes) {
  std::weak_ptr<const MappedSegment>& known = segments_[{device.uuid, segment}];
  std::shared_ptr<const MappedSegment> mapped = known.lock();
  if (mapped == nullptr) {
    mapped = mappings_.adopt(map_segment(device, fd, bytes));
    known = mapped;
  }
  return mapped;
}

// Maps in batches and closes the descriptors of each batch, because many tensors may have more
// segments than a process may have open files.
TensorLeases::Segments TensorLeases::map_all(const DeviceInfo& device, Loaded& loaded) {
  std::map<std::uint64_t, std::uint64_t> sizes;
  for (const Resident& resident : loaded.tensors) sizes[resident.segment] = resident.segment_bytes;
  Segments mapped;
  auto batch = std::exchange(loaded.descriptors, {});
  for (std::span<const std::uint64_t> rest = loaded.segments; !rest.empty();) {
    const auto numbers = rest.first(std::min(rest.size(), kSegmentsAtOnce));
    if (batch.empty()) batch = client_->descriptors(numbers);
    for (const std::uint64_t number : numbers) {
      const auto size = sizes.find(number);
      if (size == sizes.end()) answered_for_others();
      mapped[number] =
          map(device, static_cast<std::int64_t>(number), batch.at(number).get(), size->second);
    }
    batch.clear();
    rest = rest.subspan(numbers.size());
  }
  return mapped;
}

void TensorLeases::lease(const DeviceInfo& device, std::span<const Wanted> wanted,
                         std::span<const Item> items, const AcquireRequest& request,
                         Tensors& tensors) {
  // Create the owners before the leases, so that on failure their destructors give every lease
  // back.
  std::vector<std::shared_ptr<LeasedTensor>> leased;
  for (const Item& item : items) {
    auto tensor =
        std::make_shared<LeasedTensor>(TensorFacts{item.request().tensor, item.label(), item.key(),
                                                   item.dtype(), item.shape(), item.bytes()},
                                       device);
    tensor->lease_.emplace_front();
    tensor->state_->leases = shared_from_this();
    tensors.push_back(tensor);
    leased.push_back(std::move(tensor));
  }
  Loaded loaded;
  if (!items.empty()) {
    LoadRequest load;
    load.verify = request.verify;
    load.pin = request.pin;
    load.lease = true;
    load.only_resident = !request.load_if_missing;
    try {
      loaded = client().load(device, items, load);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnreadable) selection_.forget_remote();
      throw;
    }
    for (std::size_t i = 0; i < std::min(leased.size(), loaded.tensors.size()); ++i)
      leased[i]->lease_.front() = {connection_, loaded.tensors[i].id};
    if (loaded.tensors.size() != items.size()) answered_for_others();
  }

  const auto mapped = map_all(device, loaded);
  for (std::size_t i = 0; i < leased.size(); ++i) {
    LeasedTensor& tensor = *leased[i];
    const Resident& resident = loaded.tensors[i];
    if (tensor.bytes == 0) continue;
    check_placement(tensor, resident.offset, resident.segment_bytes);
    const auto segment = mapped.find(resident.segment);
    if (segment == mapped.end() || resident.key != tensor.key) answered_for_others();
    tensor.state_->segment = segment->second;
    tensor.address_ = tensor.state_->segment->address() + resident.offset;
  }

  // Add the inherited tensors, in request order.
  Tensors ordered;
  auto next = tensors.begin();
  for (const Wanted& one : wanted) {
    if (one.item) {
      ordered.push_back(*next++);
    } else {
      ordered.push_back(map_inherited(device, *one.inherited));
    }
  }
  tensors = std::move(ordered);
  std::erase_if(segments_, [](const auto& entry) { return entry.second.expired(); });
}

std::shared_ptr<LeasedTensor> TensorLeases::map_inherited(const DeviceInfo& device,
                                                          const InheritedTensor& inherited) {
  auto tensor = std::make_shared<LeasedTensor>(inherited, device);
  if (tensor->bytes != 0) {
    tensor->state_->segment = map(device, -1 - inherited.fd, inherited.fd, inherited.segment_bytes);
    tensor->address_ = tensor->state_->segment->address() + inherited.offset;
  }
  return tensor;
}

void TensorLeases::release(Tensors tensors) noexcept {
  {
    const std::lock_guard lock(ends_);
    ++releases_;
  }
  tensors.clear();
  {
    const std::lock_guard lock(ends_);
    --releases_;
  }
  send_given_back();
}

void TensorLeases::give_back(std::forward_list<Lease> lease) noexcept {
  {
    const std::lock_guard lock(ends_);
    given_back_.splice_after(given_back_.before_begin(), lease);
    if (releases_ > 0) return;  // release() sends them together
  }
  send_given_back();
}

// Reports ended leases to the holder. If another thread holds calls_, that thread does it.
void TensorLeases::send_given_back() noexcept {
  for (;;) {
    {
      const std::lock_guard lock(ends_);
      if (given_back_.empty() || releases_ > 0) return;
    }
    const std::unique_lock call(calls_, std::try_to_lock);
    if (!call) return;
    std::forward_list<Lease> ended;
    {
      const std::lock_guard lock(ends_);
      ended.swap(given_back_);
    }
    std::array<std::uint64_t, 512> ids;
    std::size_t count = 0;
    for (const Lease& lease : ended) {
      // A lease of an earlier connection ended with it.
      if (lease.connection != connection_ || !client_) continue;
      ids[count++] = lease.id;
      if (count == ids.size()) client_->release(std::span(ids).first(std::exchange(count, 0)));
    }
    if (count > 0) client_->release(std::span(ids).first(count));
  }
}

}  // namespace stfs::gpu
