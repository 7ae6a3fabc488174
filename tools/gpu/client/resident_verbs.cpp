// The verbs plan, load, ls, get, evict, pin and unpin.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/command/terminal.h"
#include "core/remote/http/url.h"
#include "core/stored/tensor.h"
#include "tools/gpu/client/client.h"
#include "tools/gpu/client/verbs.h"
#include "tools/gpu/copier/transfer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace stfs::gpu {
namespace {

using Clock = std::chrono::steady_clock;

std::string tensors_text(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " tensor" : " tensors");
}

std::string in_gb_per_second(std::uint64_t bytes, Clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  std::array<char, 32> text;
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::snprintf(text.data(), text.size(), "%.2f s, %.2f GB/s", seconds,
                seconds > 0 ? gigabytes / seconds : 0.0);
  return text.data();
}

void echo(const DeviceInfo& device) {
  print("device    " + device.id + "  " + printable(device.name) + "  " + device.uuid + "\n");
}

Json json_of(const Resident& resident) {
  return {{"label", resident.label},
          {"key", resident.key},
          {"dtype", dtype_name(resident.dtype)},
          {"shape", resident.shape},
          {"bytes", resident.bytes},
          {"uuid", resident.device_uuid},
          {"offset", resident.offset},
          {"segment_bytes", resident.segment_bytes},
          {"pinned", resident.pinned},
          {"users", resident.users},
          {"idle_seconds", resident.idle_seconds}};
}

// Returns a resident tensor as JSON, and whether the options of the request did not apply to its
// item.
Json json_of(const Resident& resident, const Item& item, const SelectionOptions& options) {
  Json json = json_of(resident);
  json["replicated"] = is_replicated(item, options);
  json["unconverted"] = is_unconverted(item, options);
  return json;
}

// Returns "replicated", "unconverted", both with a comma between them, or "".
std::string exception_of(const Item& item, const SelectionOptions& options) {
  std::string text = is_replicated(item, options) ? "replicated" : "";
  if (is_unconverted(item, options)) text += text.empty() ? "unconverted" : ",unconverted";
  return text;
}

void print_exceptions(std::span<const Item> items, const SelectionOptions& options) {
  for (const std::string& line : exceptions(items, options)) print("except    " + line + "\n");
}

// Returns the names of devices as a user gives them, by UUID. Loads the driver only if there are
// GPUs.
std::map<std::string, std::string> device_names(std::span<const Resident> tensors) {
  const DeviceInfo host = cpu_info();
  std::map<std::string, std::string> names{{host.uuid, host.id}};
  const auto is_host = [&](const Resident& tensor) { return tensor.device_uuid == host.uuid; };
  if (std::ranges::all_of(tensors, is_host)) return names;
  for (const DeviceInfo& device : list_devices()) names.emplace(device.uuid, device.id);
  return names;
}

constexpr std::size_t kNarrow = 60;  // columns; on a narrower terminal a table has fewer columns

bool is_narrow(const Terminal& terminal) {
  return terminal.is_terminal && terminal.width < kNarrow;
}

// Returns the source that begins all labels, with its "::", or else the directory of all sources.
std::string_view shared_beginning(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return {};
  std::string_view shared = rows.front().back();
  for (const std::vector<std::string>& row : rows) {
    const auto differs = std::ranges::mismatch(shared, row.back()).in1;
    shared = shared.substr(0, static_cast<std::size_t>(differs - shared.begin()));
  }
  const std::size_t colons = shared.find("::");
  return shared.substr(0, colons != std::string_view::npos ? colons + 2 : shared.rfind('/') + 1);
}

// Prints rows, which end with a label, below a heading, which is optional in a pipe. On a terminal
// the beginning that all labels share is printed only once, below, to save columns.
void print_table(const Terminal& terminal, std::vector<TextTable::Column> columns,
                 std::vector<std::vector<std::string>> rows, bool has_heading) {
  const std::string shared(terminal.is_terminal ? shared_beginning(rows) : "");
  for (std::vector<std::string>& row : rows) row.back().erase(0, shared.size());
  TextTable table(terminal, std::move(columns));
  for (const std::vector<std::string>& row : rows) table.measure(row);
  if (has_heading) print(table.heading());
  for (const std::vector<std::string>& row : rows) print(table.line(row));
  if (shared.empty()) return;
  print(terminal.dim(terminal.shortened("all in " + shared, terminal.width)) + "\n");
}

// Prints the items in the natural order of their labels.
void print_plan(std::span<const Item> items, const std::set<std::string>& resident,
                const SelectionOptions& options) {
  const Terminal terminal;
  const bool has_exceptions = options.shard || options.as;
  const bool has_types = !is_narrow(terminal);
  std::vector<TextTable::Column> columns{{.heading = "ACTION"},
                                         {.heading = "BYTES", .is_right_aligned = true}};
  if (has_types) columns.insert(columns.end(), {{.heading = "DTYPE"}, {.heading = "SHAPE"}});
  if (has_exceptions) columns.push_back({.heading = "EXCEPT", .least = 5});
  columns.push_back({.heading = "TENSOR", .least = 8, .is_name = true});
  std::vector<std::pair<std::string, const Item*>> ordered;  // each with its label
  for (const Item& item : items) ordered.emplace_back(item.label(), &item);
  std::ranges::stable_sort(ordered, [](const auto& a, const auto& b) {
    return std::is_lt(natural_order(a.first, b.first));
  });
  std::vector<std::vector<std::string>> rows;
  for (const auto& [label, item] : ordered) {
    std::vector<std::string> row{resident.contains(item->key()) ? "resident" : "copy",
                                 human_bytes(item->bytes())};
    if (has_types) {
      row.insert(row.end(), {std::string(dtype_name(item->dtype())), shape_json(item->shape())});
    }
    // In a pipe, every column has a word.
    const std::string exception = has_exceptions ? exception_of(*item, options) : "";
    if (has_exceptions) row.push_back(exception.empty() ? "-" : exception);
    row.push_back(printable(label));
    rows.push_back(std::move(row));
  }
  print_table(terminal, std::move(columns), std::move(rows), terminal.is_terminal);
}

// Prints "2 tensors, 1.5 KiB", after a line for each device if there are several.
void print_totals(const Terminal& terminal, std::span<const Resident> tensors,
                  const std::map<std::string, std::string>& names) {
  struct Held {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::string text() const { return tensors_text(count) + ", " + human_bytes(bytes); }
  };
  std::map<std::string, Held> by_device;
  Held all;
  for (const Resident& tensor : tensors) {
    for (Held* held : {&by_device[tensor.device_uuid], &all}) {
      ++held->count;
      held->bytes = sum_or_most(held->bytes, tensor.bytes);
    }
  }
  for (const auto& [uuid, held] : by_device) {
    const auto name = names.find(uuid);
    if (by_device.size() == 1) break;
    print((name == names.end() ? printable(uuid) : name->second) + "  " + held.text() + "\n");
  }
  print(terminal.bold(all.text()) + "\n");
}

// Prints one line of JSON. Bytes that are not UTF-8 are replaced.
void print_json(const Json& json) {
  print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

// A progress bar that takes totals instead of increments.
class Progress {
 public:
  void operator()(std::uint64_t done, std::uint64_t total) {
    if (done <= done_) return;  // no progress, or the copy was started again
    if (!bar_) bar_ = std::make_unique<ProgressBar>(total);
    bar_->add(done - std::exchange(done_, done));
  }

 private:
  std::unique_ptr<ProgressBar> bar_;
  std::uint64_t done_ = 0;
};

// Returns the tensors that evict, pin and unpin select. A label selects every resident version of a
// tensor, so the source need not be readable: if it is not, the argument is taken as a label. An
// argument that equals the label of a part or of a converted tensor is also taken as a label.
ResidentFilter filter_of(const GpuArguments& arguments, std::optional<Client>& client) {
  ResidentFilter filter;
  if (!arguments.device.empty()) filter.device_uuid = find_device(arguments.device).uuid;
  filter.all = arguments.all;
  if (arguments.all != arguments.tensors.empty()) {
    throw Error(ErrorCode::kUsage, "", "give either tensors or --all");
  }
  const bool has_options =
      arguments.selection.as || arguments.selection.shard || !arguments.selection.layers.empty();
  SelectionOptions options = arguments.selection;
  options.is_one_of_many = arguments.tensors.size() > 1;
  const auto may_be_label = [&](const std::string& tensor) {
    // A URL is resolved only if no label equals it.
    return !has_options && (tensor.ends_with(']') || tensor.find(" as ") != std::string::npos ||
                            tensor.find(" computed as ") != std::string::npos || is_url(tensor));
  };
  std::set<std::string> labels;
  if (client && std::ranges::any_of(arguments.tensors, may_be_label)) {
    for (const Resident& tensor : client->list()) labels.insert(tensor.label);
  }
  Selection selection(source_options(arguments));
  std::vector<Item> items;
  for (const std::string& tensor : arguments.tensors) {
    if (labels.contains(tensor)) {
      filter.labels.push_back(tensor);
      continue;
    }
    try {
      std::ranges::move(selection.resolve(tensor, options), std::back_inserter(items));
    } catch (const Error& error) {
      if (exit_status(error.code()) == exit_status(ErrorCode::kUsage)) throw;
      filter.labels.push_back(tensor);
    }
  }
  check_options(items, options);
  for (const Item& item : items) filter.labels.push_back(item.label());
  return filter;
}

[[noreturn]] void not_resident() {
  throw Error(ErrorCode::kUsage, "", "none of these is resident (stfs-gpu ls lists what is)");
}

std::optional<Client> running_holder() { return Client::connect(""); }

int set_pinned(const GpuArguments& arguments, bool pinned) {
  std::optional<Client> client = running_holder();
  const ResidentFilter filter = filter_of(arguments, client);
  const std::uint64_t count = client ? client->pin(filter, pinned) : 0;
  if (count == 0 && !arguments.all) not_resident();
  if (arguments.json) {
    print_json({{"count", count}});
  } else {
    print((pinned ? "pinned " : "unpinned ") + tensors_text(count) + "\n");
  }
  return 0;
}

}  // namespace

int plan(const GpuArguments& arguments) {
  const DeviceInfo device = open_device(find_device(arguments.device))->info();
  const std::vector<Item> items =
      Selection(source_options(arguments)).resolve_once(arguments.tensors, arguments.selection);
  std::set<std::string> resident;
  if (std::optional<Client> client = running_holder()) {
    for (const Resident& tensor : client->list()) {
      if (tensor.device_uuid == device.uuid) resident.insert(tensor.key);
    }
  }
  std::vector<std::uint64_t> sizes;
  std::uint64_t bytes = 0;
  for (const Item& item : items) {
    if (resident.contains(item.key())) continue;
    sizes.push_back(item.bytes());
    bytes = sum_or_most(bytes, item.bytes());
  }
  const std::uint64_t needed = lay_out(sizes).bytes();
  const std::uint64_t keep_free = arguments.keep_free.value_or(default_keep_free(device.id));
  const bool fits = sum_or_most(needed, keep_free) <= device.free_bytes;
  if (arguments.json) {
    Json tensors = Json::array();
    for (const Item& item : items) {
      tensors.push_back({{"label", item.label()},
                         {"key", item.key()},
                         {"dtype", dtype_name(item.dtype())},
                         {"shape", item.shape()},
                         {"bytes", item.bytes()},
                         {"resident", resident.contains(item.key())},
                         {"replicated", is_replicated(item, arguments.selection)},
                         {"unconverted", is_unconverted(item, arguments.selection)}});
    }
    print_json({{"device", device.id},
                {"uuid", device.uuid},
                {"free_bytes", device.free_bytes},
                {"total_bytes", device.total_bytes},
                {"copy_bytes", bytes},
                {"needed_bytes", needed},
                {"fits", fits},
                {"tensors", std::move(tensors)}});
    return 0;
  }
  echo(device);
  print_plan(items, resident, arguments.selection);
  print_exceptions(items, arguments.selection);
  print("copy      " + human_bytes(bytes) + " in " + tensors_text(sizes.size()) + "; needs " +
        human_bytes(needed) + " of " + human_bytes(device.free_bytes) + " free" +
        (keep_free > 0 ? ", of which " + human_bytes(keep_free) + " stay free" : "") + "\n");
  if (!fits) print("it does not fit unless resident tensors are evicted\n");
  return 0;
}

int load(const GpuArguments& arguments) {
  if (arguments.dry_run) return plan(arguments);
  const DeviceInfo device = find_device(arguments.device);
  Selection selection(source_options(arguments));
  std::vector<Item> items = selection.resolve_once(arguments.tensors, arguments.selection);
  LoadRequest request;
  request.verify = arguments.verify;
  request.pin = arguments.pin;
  request.sources = arguments.sources;
  request.keep_free = arguments.keep_free;
  request.workers = arguments.workers;
  request.tile_bytes = static_cast<std::size_t>(arguments.tile_bytes);
  if (!arguments.json) echo(device);
  const auto progress = std::make_shared<Progress>();
  request.progress = [progress](std::uint64_t done, std::uint64_t total) {
    (*progress)(done, total);
  };
  std::optional<Client> client = Client::connect(arguments.program);
  const Clock::time_point begin = Clock::now();
  Loaded loaded;
  selection.load_resolved(items, arguments.tensors, arguments.selection,
                          [&] { loaded = client->load(device, items, request); });
  const Clock::duration time = Clock::now() - begin;
  *progress = Progress();
  for (const std::string& warning : loaded.warnings) {
    std::fprintf(stderr, "stfs-gpu: warning: %s\n", printable(warning).c_str());
  }
  std::uint64_t bytes = 0;
  for (const Resident& tensor : loaded.tensors) bytes = sum_or_most(bytes, tensor.bytes);
  if (arguments.json) {
    Json tensors = Json::array();
    for (std::size_t i = 0; i < loaded.tensors.size(); ++i) {
      tensors.push_back(json_of(loaded.tensors[i], items.at(i), arguments.selection));
    }
    print_json({{"device", device.id},
                {"uuid", device.uuid},
                {"bytes", bytes},
                {"copied_bytes", loaded.copied_bytes},
                {"seconds", std::chrono::duration<double>(time).count()},
                {"verified", arguments.verify},
                {"tensors", std::move(tensors)}});
    return 0;
  }
  print("resident  " + tensors_text(loaded.tensors.size()) + ", " + human_bytes(bytes) +
        (loaded.copied_bytes == 0 ? "; nothing to copy"
                                  : "; copied " + human_bytes(loaded.copied_bytes) + " in " +
                                        in_gb_per_second(loaded.copied_bytes, time)) +
        (arguments.verify && loaded.copied_bytes > 0 ? ", verified" : "") + "\n");
  print_exceptions(items, arguments.selection);
  return 0;
}

// Prints a line for each source of a device, with the totals of its tensors.
void print_sources(const Terminal& terminal, std::span<const Resident> tensors,
                   const std::map<std::string, std::string>& names) {
  struct Group {
    std::uint64_t count = 0, bytes = 0, pinned = 0;
    std::set<std::int64_t> users;
    std::uint64_t idle_seconds = ~std::uint64_t{0};  // of the tensor that was used last
  };
  std::vector<std::pair<std::pair<std::string, std::string>, Group>> groups;  // by device, source
  for (const Resident& tensor : tensors) {
    const std::pair key{tensor.device_uuid, tensor.label.substr(0, tensor.label.find("::"))};
    auto group = std::ranges::find(groups, key, [](const auto& row) { return row.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {key, Group{}});
    Group& sum = group->second;
    ++sum.count;
    sum.bytes = sum_or_most(sum.bytes, tensor.bytes);
    sum.pinned += tensor.pinned ? 1 : 0;
    sum.users.insert(tensor.users.begin(), tensor.users.end());
    sum.idle_seconds = std::min<std::uint64_t>(sum.idle_seconds, tensor.idle_seconds);
  }
  const bool is_whole = !is_narrow(terminal);
  std::vector<TextTable::Column> columns{{.heading = "DEVICE", .least = 6},
                                         {.heading = "TENSORS", .is_right_aligned = true},
                                         {.heading = "BYTES", .is_right_aligned = true}};
  if (is_whole) {
    columns.insert(columns.end(), {{.heading = "USERS", .is_right_aligned = true},
                                   {.heading = "PINNED", .is_right_aligned = true},
                                   {.heading = "IDLE", .is_right_aligned = true}});
  }
  columns.push_back({.heading = "SOURCE", .least = 8, .is_name = true});
  TextTable table(terminal, std::move(columns));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, group] : groups) {
    const auto name = names.find(key.first);
    std::vector<std::string> row{name == names.end() ? printable(key.first) : name->second,
                                 std::to_string(group.count), human_bytes(group.bytes)};
    if (is_whole) {
      row.insert(row.end(), {std::to_string(group.users.size()), std::to_string(group.pinned),
                             std::to_string(group.idle_seconds) + " s"});
    }
    row.push_back(printable(key.second));
    table.measure(row);
    rows.push_back(std::move(row));
  }
  print(table.heading());
  for (const std::vector<std::string>& row : rows) print(table.line(row));
}

int list_resident(const GpuArguments& arguments) {
  const std::string uuid = arguments.device.empty() ? "" : find_device(arguments.device).uuid;
  std::vector<Resident> tensors;
  if (std::optional<Client> client = running_holder()) tensors = client->list();
  std::erase_if(
      tensors, [&](const Resident& tensor) { return !uuid.empty() && tensor.device_uuid != uuid; });
  std::ranges::sort(tensors, [](const Resident& a, const Resident& b) {
    if (a.device_uuid != b.device_uuid) return a.device_uuid < b.device_uuid;
    return std::is_lt(natural_order(a.label, b.label));
  });
  if (arguments.json) {
    Json rows = Json::array();
    for (const Resident& tensor : tensors) rows.push_back(json_of(tensor));
    print_json(rows);
    return 0;
  }
  if (tensors.empty()) return 0;
  const Terminal terminal;
  const std::map<std::string, std::string> names = device_names(tensors);
  if (!arguments.all) {
    print_sources(terminal, tensors, names);
    if (terminal.is_terminal) print_totals(terminal, tensors, names);
    return 0;
  }
  const bool is_whole = !is_narrow(terminal);
  std::vector<TextTable::Column> columns{{.heading = "DEVICE", .least = 6},
                                         {.heading = "BYTES", .is_right_aligned = true}};
  if (is_whole) {
    columns.insert(columns.end(), {{.heading = "DTYPE"},
                                   {.heading = "USERS", .is_right_aligned = true},
                                   {.heading = "PINNED"},
                                   {.heading = "IDLE", .is_right_aligned = true}});
  }
  columns.push_back({.heading = "TENSOR", .least = 8, .is_name = true});
  std::vector<std::vector<std::string>> rows;
  for (const Resident& tensor : tensors) {
    const auto name = names.find(tensor.device_uuid);
    std::vector<std::string> row{name == names.end() ? printable(tensor.device_uuid) : name->second,
                                 human_bytes(tensor.bytes)};
    if (is_whole) {
      row.insert(row.end(),
                 {std::string(dtype_name(tensor.dtype)), std::to_string(tensor.users.size()),
                  tensor.pinned ? "yes" : "no", std::to_string(tensor.idle_seconds) + " s"});
    }
    row.push_back(printable(tensor.label));
    rows.push_back(std::move(row));
  }
  print_table(terminal, std::move(columns), std::move(rows), true);
  if (terminal.is_terminal) print_totals(terminal, tensors, names);
  return 0;
}

int get(const GpuArguments& arguments) {
  const DeviceInfo device = find_device(arguments.device);
  const std::vector<Item> items =
      Selection(source_options(arguments)).resolve_once(arguments.tensors, arguments.selection);
  std::optional<Client> client = running_holder();
  if (!client) {
    throw Error(ErrorCode::kDeviceFailed, "",
                "nothing is resident: no holder runs (stfs-gpu load starts one)");
  }
  LoadRequest request;
  request.only_resident = true;
  const Loaded loaded = client->load(device, items, request);
  const std::int64_t pid = client->status().pid;
  Json rows = Json::array();
  for (std::size_t i = 0; i < loaded.tensors.size(); ++i) {
    const Resident& tensor = loaded.tensors[i];
    Json row = json_of(tensor, items.at(i), arguments.selection);
    row["device"] = device.id;
    row["holder_pid"] = pid;
    row["holder_fd"] = tensor.holder_fd;
    // open(2) accepts this path for host memory; a GPU's descriptor needs pidfd_getfd(2).
    row["path"] = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(tensor.holder_fd);
    rows.push_back(std::move(row));
  }
  if (arguments.json) {
    print_json(rows);
    return 0;
  }
  for (const Json& row : rows) {
    const auto line = [&](const char* name) {
      const Json& value = row[name];
      print(padded(name, 15) +
            (value.is_string() ? printable(value.get<std::string>()) : value.dump()) + "\n");
    };
    for (const char* name : {"label", "dtype", "shape", "bytes", "device", "uuid", "path", "offset",
                             "segment_bytes"}) {
      line(name);
    }
  }
  return 0;
}

int evict(const GpuArguments& arguments) {
  std::optional<Client> client = running_holder();
  const ResidentFilter filter = filter_of(arguments, client);
  const Evicted evicted = client ? client->evict(filter, arguments.force) : Evicted{};
  if (evicted.count == 0 && evicted.pinned > 0) {
    throw Error(ErrorCode::kDeviceFailed, "",
                std::to_string(evicted.pinned) + " pinned: unpin first, or --force");
  }
  if (evicted.count == 0 && !arguments.all) not_resident();
  if (arguments.json) {
    print_json({{"count", evicted.count}, {"pinned", evicted.pinned}, {"used", evicted.used}});
    return 0;
  }
  print("evicted " + tensors_text(evicted.count));
  if (evicted.used > 0) {
    print("; " + std::to_string(evicted.used) + " still leased: freed when the last lease ends");
  }
  if (evicted.pinned > 0) print("; left " + std::to_string(evicted.pinned) + " pinned");
  print("\n");
  return 0;
}

int pin(const GpuArguments& arguments) { return set_pinned(arguments, true); }
int unpin(const GpuArguments& arguments) { return set_pinned(arguments, false); }

}  // namespace stfs::gpu
