#include "tools/gpu/holder/residency.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "tools/gpu/device/device.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace stfs::gpu {
namespace {

constexpr unsigned kMaxAttempts = 3;         // to send an order that no copier has read
constexpr std::size_t kMaxNamed = 8;         // tensors named in one error text
constexpr std::size_t kMaxDevices = 64;      // the maximum number of devices with loads
constexpr std::uint64_t kContext = 1 << 30;  // bytes; more than a context needs
constexpr const char* kNoMemory = "the holder is out of memory";
constexpr const char* kNoDescriptors =
    "too many open files in the holder: end it and start it with a higher ulimit -n";

Json error_body(int status, const std::string& text) {
  return {{"error", {{"status", status}, {"message", to_json_text(text)}}}};
}

int usage() { return exit_status(ErrorCode::kUsage); }
int device_failed() { return exit_status(ErrorCode::kDeviceFailed); }

}  // namespace

Residency::Residency(MessageSink& outlet, std::uint64_t memory_limit)
    : outlet_(outlet), memory_limit_(memory_limit) {}

Residency::~Residency() = default;

void Residency::connected(ClientId client, pid_t pid) { clients_[client].pid = pid; }

void Residency::disconnected(ClientId client) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  for (auto& [uuid, loads] : loads_) {
    if (loads.empty()) continue;
    Load& current = loads.front();
    if (current.client == client && current.id != 0) {
      outlet_.order(uuid, current.device, {{"stop", current.id}});
      current.client = 0;  // discard the answer
    }
    std::erase_if(loads, [&](const Load& load) { return load.client == client; });
  }
  const auto leases = std::move(found->second.leases);
  clients_.erase(found);
  for (const auto& [tensor, count] : leases) unlease(tensor, count);
}

void Residency::request(ClientId client, const Json& body) {
  try {
    dispatch(client, body);
  } catch (const Error& error) {
    outlet_.reply(client, error_body(exit_status(error.code()), error.what()), {});
  } catch (const std::bad_alloc&) {
    outlet_.reply(client, error_body(device_failed(), kNoMemory), {});
  } catch (const std::exception& error) {
    outlet_.reply(client, error_body(usage(), std::string("malformed message: ") + error.what()),
                  {});
  }
}

void Residency::dispatch(ClientId client, const Json& body) {
  if (!clients_.contains(client)) return;
  const std::string verb = text_of(body, "request");
  if (verb == "hello") return hello(client, body);
  if (!clients_.at(client).has_said_hello) {
    throw Error(ErrorCode::kDeviceFailed, "",
                version_error(kProtocolVersion, ::getpid(), "this program", 1, true));
  }
  if (verb == "load") return load(client, body);
  if (verb == "segments") return segments(client, body);
  if (verb == "release") return release(client, body);
  if (verb == "evict") return evict(client, body);
  if (verb == "pin") return pin(client, body);
  if (verb == "list") return list(client);
  if (verb == "status") return status(client);
  throw Error(ErrorCode::kUsage, "", "malformed message: unknown request " + in_quotes(verb));
}

void Residency::hello(ClientId client, const Json& body) {
  const std::uint64_t version = number_of(body, "version");
  clients_.at(client).has_said_hello = version == kProtocolVersion;
  Json reply{{"version", kProtocolVersion}, {"pid", ::getpid()}};
  if (version != kProtocolVersion) {
    reply.update(error_body(device_failed(), version_error(kProtocolVersion, ::getpid(),
                                                           "this program", version, true)));
  }
  outlet_.reply(client, reply, {});
}

void Residency::load(ClientId client, const Json& body) {
  Load load;
  load.client = client;
  load.uuid = text_of(body, "uuid");
  load.device = text_of(body, "device");
  const bool is_host = load.device == "cpu";
  if (is_host != load.uuid.starts_with("CPU-") || !(is_host || load.device.starts_with("cuda:"))) {
    throw Error(
        ErrorCode::kUsage, "",
        "device " + in_quotes(load.device) + ": does not match the UUID " + in_quotes(load.uuid));
  }
  load.pin = flag_of(body, "pin");
  load.lease = flag_of(body, "lease");
  load.only_resident = flag_of(body, "only_resident");
  load.options = copy_options_from_json(body);
  load.items = items_of(body);

  const bool all_resident = std::ranges::all_of(
      load.items, [&](const Item& item) { return find(load.uuid, item.key()).has_value(); });
  if (all_resident) return finish(load);
  if (load.only_resident) {
    std::string text = "not resident on " + load.device + ":";
    std::size_t named = 0;
    for (const Item& item : load.items) {
      if (find(load.uuid, item.key())) continue;
      if (++named > kMaxNamed) continue;
      text += " " + in_quotes(item.label());
      for (const auto& [where, tensor] : index_) {
        if (where.second == item.key()) text += " (it is on " + where.first + ")";
      }
    }
    if (named > kMaxNamed) text += " and " + std::to_string(named - kMaxNamed) + " more";
    return fail(load, device_failed(),
                text + (named == 1 ? ": load it first" : ": load them first"));
  }
  std::erase_if(loads_, [](const auto& entry) { return entry.second.empty(); });
  const std::string uuid = load.uuid;
  if (!loads_.contains(uuid) && loads_.size() >= kMaxDevices) {
    throw Error(ErrorCode::kDeviceFailed, "",
                "loads to too many devices are under way: try again later");
  }
  loads_[uuid].push_back(std::move(load));
  if (loads_[uuid].size() == 1) advance(uuid);
}

void Residency::advance(const std::string& uuid) {
  std::deque<Load>& loads = loads_[uuid];
  while (!loads.empty()) {
    try {
      if (begin(loads.front())) return;
    } catch (const std::bad_alloc&) {
      fail(loads.front(), device_failed(), kNoMemory);
    }
    let_go(loads.front());
    loads.pop_front();
  }
}

void Residency::end_first(const std::string& uuid) {
  let_go(loads_[uuid].front());
  loads_[uuid].pop_front();
  advance(uuid);
}

void Residency::let_go(Load& load) {
  for (const std::uint64_t tensor : std::exchange(load.held, {})) unlease(tensor, 1);
}

bool Residency::begin(Load& load) {
  load.copied.clear();
  std::set<std::string> keys;
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < load.items.size(); ++i) {
    const Item& item = load.items[i];
    if (const auto resident = find(load.uuid, item.key())) {
      load.held.push_back(*resident);
      ++tensors_.at(*resident).users;
    } else if (keys.insert(item.key()).second) {
      load.copied.push_back(i);
      sizes.push_back(item.bytes());
    }
  }
  if (load.copied.empty()) {
    finish(load);
    return false;
  }
  load.layout = lay_out(sizes);
  const std::uint64_t needed = load.layout.bytes();
  const std::uint64_t held = room(load.uuid).held;
  if (memory_limit_ != 0 && (needed > memory_limit_ || held > memory_limit_ - needed)) {
    const std::uint64_t free = memory_limit_ - std::min(held, memory_limit_);
    if (needed > memory_limit_ || !make_room(load.uuid, needed - free)) {
      no_room(load, needed, free);
      return false;
    }
  }
  order(load);
  return true;
}

void Residency::order(Load& load) {
  load.id = next_id_++;
  load.begun = false;
  ++load.attempts;
  std::vector<Item> items;
  for (const std::size_t i : load.copied) items.push_back(load.items[i]);
  Json body{{"load", load.id}, {"wait_for_room", load.waits_for_room}};
  put_items(body, items);
  body.update(to_json(load.options));
  outlet_.order(load.uuid, load.device, body);
}

bool Residency::order_again(Load& load, std::uint64_t needed, std::uint64_t free) {
  if (load.client == 0) return false;
  // After a refusal there is too little memory, whatever the driver reported.
  std::uint64_t lacking = needed > free ? needed - free : needed;
  if (needed == 0) lacking = std::min(kContext, room(load.uuid).evictable);
  if (lacking == 0 || !make_room(load.uuid, lacking)) {
    if (load.device == "cpu" || load.waits_for_room) return false;
  }
  load.waits_for_room = load.device != "cpu";
  order(load);
  return true;
}

void Residency::answer(const std::string& uuid, Message message) {
  std::deque<Load>& loads = loads_[uuid];
  if (loads.empty()) return;
  Load& load = loads.front();
  try {
    if (number_of(message.body(), "load") != load.id) return;  // the answer to a stopped load
    load.begun = true;
    if (message.body().contains("progress")) {
      if (load.client != 0) {
        outlet_.reply(load.client,
                      {{"progress", number_of(message.body(), "progress")},
                       {"total", number_of(message.body(), "total")}},
                      {});
      }
      return;
    }
    if (message.body().contains("needed")) {
      const std::uint64_t needed = number_of(message.body(), "needed");
      const std::uint64_t free = number_of(message.body(), "free");
      if (order_again(load, needed, free)) return;
      no_room(load, needed, free);
    } else if (message.body().contains("error")) {
      const Json& error = message.body().at("error");
      fail(load, static_cast<int>(number_of(error, "status")), text_of(error, "message"));
    } else if (message.lacks_descriptors) {
      fail(load, device_failed(), kNoDescriptors);
    } else if (load.client != 0) {
      publish(load, std::move(message));
      finish(load);
    } else {
      outlet_.discard(std::move(message.descriptors));
    }
  } catch (const std::bad_alloc&) {
    fail(load, device_failed(), kNoMemory);
  } catch (const std::exception& error) {
    fail(load, device_failed(),
         std::string("malformed answer of the copier: ") + error.what() + " (please report it)");
  }
  end_first(uuid);
}

void Residency::copier_gone(const std::string& uuid, const std::string& why) {
  std::deque<Load>& loads = loads_[uuid];
  if (loads.empty()) return;
  Load& load = loads.front();
  // An idle copier exited before it read the order, so send the order again.
  if (why.empty() && !load.begun && load.client != 0 && load.attempts < kMaxAttempts)
    return order(load);
  copier_useless(uuid, "the copier ended" + (why.empty() ? "" : ": " + why) +
                           "; nothing was loaded: load again");
}

void Residency::copier_useless(const std::string& uuid, const std::string& line) {
  if (loads_[uuid].empty()) return;
  fail(loads_[uuid].front(), device_failed(), line);
  end_first(uuid);
}

void Residency::publish(Load& load, Message message) {
  const Json& counts = list_of(message.body(), "counts");
  if (message.descriptors.size() != load.layout.segment_bytes.size() ||
      counts.size() != load.copied.size()) {
    throw Error(ErrorCode::kDeviceFailed, "", "wrong number of segments (please report it)");
  }
  std::vector<ConversionCounts> converted;
  for (const Json& count : counts) {
    converted.push_back({number_of(count, "out_of_range"), number_of(count, "nan")});
  }
  const std::string note = message.body().contains("note") ? text_of(message.body(), "note") : "";
  if (!note.empty()) load.warnings.push_back(to_json_text(note));
  // The answer is valid. Nothing below fails, so the load is published as a whole.
  std::vector<std::uint64_t> segments;
  for (std::size_t i = 0; i < message.descriptors.size(); ++i) {
    segments.push_back(next_id_++);
    segments_[segments.back()] = {.uuid = load.uuid,
                                  .fd = std::move(message.descriptors[i]),
                                  .bytes = load.layout.segment_bytes[i]};
  }
  for (std::size_t i = 0; i < load.copied.size(); ++i) {
    const Item& item = load.items[load.copied[i]];
    const Placement& placement = load.layout.placements[i];
    const std::uint64_t id = next_id_++;
    Tensor& tensor = tensors_[id];
    tensor = {.uuid = load.uuid,
              .key = item.key(),
              .label = item.label(),
              .dtype = item.dtype(),
              .shape = item.shape(),
              .bytes = item.bytes(),
              .offset = placement.offset};
    if (placement.segment != Placement::kNone) {
      tensor.segment = segments[placement.segment];
      segments_.at(tensor.segment).tenants.insert(id);
    }
    index_[{load.uuid, tensor.key}] = id;
    load.copied_bytes += tensor.bytes;
    const auto [out_of_range, nan] = converted[i];
    const std::string name = in_quotes(item.label());
    if (out_of_range > 0) {
      load.warnings.push_back(to_json_text(name + ": " + std::to_string(out_of_range) +
                                           " values out of range became infinite"));
    }
    if (nan > 0) load.warnings.push_back(to_json_text(name + ": " + std::to_string(nan) + " NaN"));
  }
}

// Answers the client, because every item is resident.
void Residency::finish(Load& load) {
  const auto client = clients_.find(load.client);
  if (client == clients_.end()) return;
  std::vector<std::uint64_t> ids;
  for (const Item& item : load.items) {
    const auto id = find(load.uuid, item.key());
    if (!id)
      return fail(load, device_failed(),
                  in_quotes(item.label()) + ": evicted while it was loaded: load it with --pin");
    ids.push_back(*id);
  }
  Json numbers = Json::array();
  std::vector<UniqueFd> descriptors;
  std::set<std::uint64_t> segments;
  for (const std::uint64_t id : ids) {
    const std::uint64_t number = tensors_.at(id).segment;
    if (!load.lease || number == 0 || !segments.insert(number).second) continue;
    numbers.push_back(number);
    if (numbers.size() > kSegmentsAtOnce) continue;  // the client asks for the rest
    descriptors.push_back(copy_of(number));
    if (!descriptors.back()) return fail(load, device_failed(), kNoDescriptors);
  }
  ++uses_;
  Json rows = Json::array();
  for (const std::uint64_t id : ids) {
    Tensor& tensor = tensors_.at(id);
    tensor.used = uses_;
    tensor.used_at = Clock::now();
    tensor.pinned = tensor.pinned || load.pin;
    if (load.lease) {
      ++tensor.users;
      ++client->second.leases[id];
    }
    rows.push_back(row(id));
  }
  outlet_.reply(load.client,
                {{"tensors", std::move(rows)},
                 {"segments", std::move(numbers)},
                 {"copied_bytes", load.copied_bytes},
                 {"warnings", load.warnings}},
                std::move(descriptors));
}

void Residency::fail(const Load& load, int status, const std::string& text) {
  if (load.client != 0) outlet_.reply(load.client, error_body(status, text), {});
}

void Residency::no_room(const Load& load, std::uint64_t needed, std::uint64_t free) {
  const Room held = room(load.uuid);
  const std::uint64_t stays_free = load.options.keep_free.value_or(default_keep_free(load.device));
  const std::string what =
      needed == 0 ? "no room for a context"
                  : "needed " + human_bytes(needed) + ", free " + human_bytes(free) +
                        (stays_free > 0 && needed > stays_free
                             ? ", " + human_bytes(stays_free) + " stay free (--keep-free)"
                             : "");
  fail(load, device_failed(),
       load.device + ": out of memory: " + what + ", held " + human_bytes(held.held) +
           " (evictable " + human_bytes(held.evictable) + ")" +
           (memory_limit_ != 0 ? ", limit " + human_bytes(memory_limit_) : "") +
           " (stfs-gpu ls shows who holds it)");
}

UniqueFd Residency::copy_of(std::uint64_t segment) const {
  return UniqueFd(::fcntl(segments_.at(segment).fd.get(), F_DUPFD_CLOEXEC, 0));
}

// Sends the client another batch of the descriptors of its leases.
void Residency::segments(ClientId client, const Json& body) {
  const Json& numbers = list_of(body, "numbers");
  if (numbers.size() > kSegmentsAtOnce) {
    throw Error(ErrorCode::kUsage, "", "malformed message: too many segments");
  }
  const auto& leases = clients_.at(client).leases;
  std::vector<UniqueFd> descriptors;
  for (const Json& number : numbers) {
    const auto segment =
        segments_.find(number.is_number_unsigned() ? number.get<std::uint64_t>() : 0);
    if (segment == segments_.end() ||
        std::ranges::none_of(segment->second.tenants,
                             [&](std::uint64_t id) { return leases.contains(id); })) {
      throw Error(ErrorCode::kUsage, "", "malformed message: a segment without a lease");
    }
    descriptors.push_back(copy_of(segment->first));
    if (!descriptors.back()) throw Error(ErrorCode::kDeviceFailed, "", kNoDescriptors);
  }
  outlet_.reply(client, {{"segments", numbers}}, std::move(descriptors));
}

// Leases are found by the tensor's id, because the key may belong to a newer tensor.
void Residency::release(ClientId client, const Json& body) {
  std::map<std::uint64_t, std::uint64_t>& leases = clients_.at(client).leases;
  std::uint64_t released = 0;
  for (const Json& id : list_of(body, "ids")) {
    if (!id.is_number_unsigned()) throw Error(ErrorCode::kUsage, "", "malformed message: ids");
    const auto lease = leases.find(id.get<std::uint64_t>());
    if (lease == leases.end()) continue;
    const std::uint64_t tensor = lease->first;
    if (--lease->second == 0) leases.erase(lease);
    unlease(tensor, 1);
    ++released;
  }
  outlet_.reply(client, {{"count", released}}, {});
}

std::vector<std::uint64_t> Residency::selected(const Json& body) const {
  const bool all = flag_of(body, "all");
  const std::string uuid = body.contains("uuid") ? text_of(body, "uuid") : "";
  std::set<std::string> labels;
  for (const Json& label : list_of(body, "labels")) labels.insert(from_json_text(label));
  std::vector<std::uint64_t> found;
  for (const auto& [where, id] : index_) {
    if (!uuid.empty() && where.first != uuid) continue;
    if (all || labels.contains(tensors_.at(id).label)) found.push_back(id);
  }
  return found;
}

void Residency::evict(ClientId client, const Json& body) {
  const bool force = flag_of(body, "force");
  std::uint64_t count = 0;
  std::uint64_t pinned = 0;
  std::uint64_t used = 0;
  for (const std::uint64_t id : selected(body)) {
    if (tensors_.at(id).pinned && !force) {
      ++pinned;
      continue;
    }
    if (tensors_.at(id).users > 0) ++used;
    remove(id);
    ++count;
  }
  outlet_.reply(client, {{"count", count}, {"pinned", pinned}, {"used", used}}, {});
}

void Residency::pin(ClientId client, const Json& body) {
  const bool pinned = flag_of(body, "pinned");
  const std::vector<std::uint64_t> ids = selected(body);
  for (const std::uint64_t id : ids) tensors_.at(id).pinned = pinned;
  outlet_.reply(client, {{"count", ids.size()}}, {});
}

void Residency::list(ClientId client) {
  Json rows = Json::array();
  for (const auto& [where, id] : index_) rows.push_back(row(id));
  outlet_.reply(client, {{"tensors", std::move(rows)}}, {});
}

void Residency::status(ClientId client) {
  Json devices = Json::object();
  for (const auto& [number, segment] : segments_) {
    if (devices.contains(segment.uuid)) continue;
    const Room held = room(segment.uuid);
    devices[segment.uuid] = {{"held", held.held}, {"evictable", held.evictable}};
  }
  outlet_.reply(client,
                {{"pid", ::getpid()},
                 {"memory_limit", memory_limit_},
                 {"clients", clients_.size()},
                 {"devices", std::move(devices)}},
                {});
}

bool Residency::is_idle() const { return tensors_.empty() && clients_.empty() && !is_in_use(); }

bool Residency::is_in_use() const {
  return std::ranges::any_of(clients_,
                             [](const auto& entry) { return !entry.second.leases.empty(); }) ||
         std::ranges::any_of(loads_, [](const auto& entry) { return !entry.second.empty(); });
}

bool Residency::is_loading(const std::string& uuid) const {
  const auto loads = loads_.find(uuid);
  return loads != loads_.end() && !loads->second.empty();
}

std::optional<std::uint64_t> Residency::find(const std::string& uuid,
                                             const std::string& key) const {
  const auto found = index_.find({uuid, key});
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

void Residency::remove(std::uint64_t id) {
  Tensor& tensor = tensors_.at(id);
  if (!std::exchange(tensor.indexed, false)) return;
  index_.erase({tensor.uuid, tensor.key});
  drop_if_unused(id);
}

void Residency::unlease(std::uint64_t id, std::uint64_t count) {
  tensors_.at(id).users -= count;
  drop_if_unused(id);
}

void Residency::drop_if_unused(std::uint64_t id) {
  const Tensor& tensor = tensors_.at(id);
  if (tensor.indexed || tensor.users > 0) return;
  if (const auto segment = segments_.find(tensor.segment); segment != segments_.end()) {
    segment->second.tenants.erase(id);
    if (segment->second.tenants.empty()) {
      discard(std::move(segment->second.fd));
      segments_.erase(segment);
    }
  }
  tensors_.erase(id);
}

void Residency::discard(UniqueFd descriptor) {
  std::vector<UniqueFd> one;
  one.push_back(std::move(descriptor));
  outlet_.discard(std::move(one));
}

Residency::Room Residency::room(const std::string& uuid) const {
  Room room;
  for (const auto& [number, segment] : segments_) {
    if (segment.uuid != uuid) continue;
    room.held += segment.bytes;
    std::uint64_t last_used = 0;
    if (evictable(segment, last_used)) room.evictable += segment.bytes;
  }
  return room;
}

bool Residency::evictable(const Segment& segment, std::uint64_t& last_used) const {
  for (const std::uint64_t id : segment.tenants) {
    const Tensor& tensor = tensors_.at(id);
    if (tensor.pinned || tensor.users > 0) return false;
    last_used = std::max(last_used, tensor.used);
  }
  return true;
}

bool Residency::make_room(const std::string& uuid, std::uint64_t bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> by_age;  // (last use, segment)
  std::uint64_t evictable_bytes = 0;
  for (const auto& [number, segment] : segments_) {
    std::uint64_t last_used = 0;
    if (segment.uuid != uuid || !evictable(segment, last_used)) continue;
    by_age.emplace_back(last_used, number);
    evictable_bytes += segment.bytes;
  }
  if (evictable_bytes < bytes) return false;
  std::ranges::sort(by_age);
  std::uint64_t freed = 0;
  for (const auto& [last_used, number] : by_age) {
    if (freed >= bytes) break;
    freed += segments_.at(number).bytes;
    const std::set<std::uint64_t> tenants = segments_.at(number).tenants;
    for (const std::uint64_t id : tenants) remove(id);
  }
  return true;
}

Json Residency::row(std::uint64_t id) const {
  const Tensor& tensor = tensors_.at(id);
  Json pids = Json::array();
  for (const auto& [client, state] : clients_) {
    if (tensor.users == 0) break;
    if (state.leases.contains(id)) pids.push_back(state.pid);
  }
  const auto idle = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - tensor.used_at);
  const auto segment = segments_.find(tensor.segment);
  return {{"id", id},
          {"key", tensor.key},
          {"label", to_json_text(tensor.label)},
          {"dtype", dtype_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"bytes", tensor.bytes},
          {"uuid", to_json_text(tensor.uuid)},
          {"segment", tensor.segment},
          {"offset", tensor.offset},
          {"pinned", tensor.pinned},
          {"users", std::move(pids)},
          {"idle_seconds", std::max<std::int64_t>(idle.count(), 0)},
          {"holder_fd", segment == segments_.end() ? -1 : segment->second.fd.get()},
          {"segment_bytes", segment == segments_.end() ? 0 : segment->second.bytes}};
}

}  // namespace stfs::gpu
