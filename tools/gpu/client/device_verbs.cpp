// The verbs devices, doctor and bench.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/command/terminal.h"
#include "core/remote/http/url.h"
#include "tools/gpu/client/client.h"
#include "tools/gpu/client/verbs.h"
#include "tools/gpu/copier/transfer.h"
#include "tools/gpu/device/lanes.h"
#include "tools/gpu/device/processors.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace stfs::gpu {
namespace {

using Clock = std::chrono::steady_clock;

std::string limit_text(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_max == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_max);
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Runs work(0) to work(count - 1), each on its own thread. Throws the first failure.
void in_threads(unsigned count, const std::function<void(unsigned)>& work) {
  std::vector<std::exception_ptr> failures(count);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        try {
          work(i);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// A workload of bench and its rate in each round, bytes per second.
struct Series {
  const char* name;
  std::function<void()> work;
  std::vector<double> rates = {};

  double median() const {
    std::vector<double> sorted = rates;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
};

// The fastest copy of the same bytes without stfs: bench compares a load with it.
class Ceiling {
 public:
  Ceiling(Device& device, std::span<const Item> items, unsigned workers, std::size_t tile)
      : device_(device), items_(items), workers_(workers), tile_(tile) {
    for (const Item& item : items) bytes_ = sum_or_most(bytes_, item.bytes());
  }

  // Host memory: threads read tiles with pread(2) straight into the segment, without planning or
  // checks.
  void plain_copy() const {
    struct Piece {
      const UniqueFd* file;
      std::uint64_t from;
      DeviceSegment* segment;
      std::uint64_t at;
      std::size_t length;
    };
    std::map<std::string, UniqueFd> files;
    std::vector<std::unique_ptr<DeviceSegment>> segments;
    std::vector<Piece> pieces;
    for (const Item& item : items_) {
      if (item.bytes() == 0) continue;
      const ItemRequest& request = item.request();
      if (!files.contains(request.path)) files.emplace(request.path, open_regular(request.path));
      segments.push_back(device_.allocate(rounded(item.bytes())));
      for (std::uint64_t at = 0; at < item.bytes(); at += tile_) {
        pieces.push_back(
            {&files.at(request.path), request.offset + at, segments.back().get(), at,
             static_cast<std::size_t>(std::min<std::uint64_t>(tile_, item.bytes() - at))});
      }
    }
    std::atomic<std::size_t> next = 0;
    in_threads(workers_, [&](unsigned) {
      const std::unique_ptr<Lane> lane = device_.lane(tile_);
      for (std::size_t i = next++; i < pieces.size(); i = next++) {
        const Piece& piece = pieces[i];
        const std::span<std::byte> tile = lane->tile(*piece.segment, piece.at, piece.length);
        if (const int error = pread_exact(piece.file->get(), tile, piece.from)) {
          throw_errno(ErrorCode::kUnreadable, "the source", "", error);
        }
      }
    });
  }

  // GPU: sends the same pinned tiles again and again, without reading a source.
  void bus() const {
    const std::unique_ptr<DeviceSegment> segment = device_.allocate(rounded(tile_ * workers_));
    const std::uint64_t tiles = std::max<std::uint64_t>(bytes_ / tile_, 1);
    std::atomic<std::uint64_t> next = 0;
    in_threads(workers_, [&](unsigned i) {
      const OnProcessors near(device_.processors());
      std::unique_ptr<Lane> lane = lanes_.take(device_, tile_);
      while (next.fetch_add(1) < tiles) {
        lane->tile(*segment, i * tile_, tile_);
        lane->send();
      }
      lane->drain();
      lanes_.give_back(std::move(lane));
    });
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  static std::uint64_t rounded(std::uint64_t bytes) {
    return (bytes + kSegmentGranularity - 1) / kSegmentGranularity * kSegmentGranularity;
  }

  Device& device_;
  std::span<const Item> items_;
  unsigned workers_;
  std::size_t tile_;
  mutable Lanes lanes_;  // as a copier has them
  std::uint64_t bytes_ = 0;
};

}  // namespace

int devices(const GpuArguments& arguments) {
  std::string why;
  const std::vector<DeviceInfo> found = list_devices(&why);
  if (arguments.json) {
    Json rows = Json::array();
    for (const DeviceInfo& device : found) {
      rows.push_back({{"device", device.id},
                      {"name", device.name},
                      {"uuid", device.uuid},
                      {"pci", device.pci},
                      {"total_bytes", device.total_bytes}});
    }
    print(rows.dump() + "\n");
    return 0;
  }
  const Terminal terminal;
  // A UUID that is cut cannot be copied: cut it only where it cannot stand whole.
  constexpr std::size_t kUuidColumns = 40, kWide = 80;
  TextTable table(terminal,
                  {{.heading = "DEVICE"},
                   {.heading = "NAME", .least = 5},
                   {.heading = "UUID", .least = terminal.width < kWide ? 6 : kUuidColumns},
                   {.heading = "PCI", .least = 3},
                   {.heading = "MEMORY", .is_right_aligned = true}});
  std::vector<std::array<std::string, 5>> rows;
  for (const DeviceInfo& device : found) {
    rows.push_back({device.id, printable(device.name), device.uuid,
                    device.pci.empty() ? "-" : device.pci, human_bytes(device.total_bytes)});
    table.measure(rows.back());
  }
  if (terminal.is_terminal) print(table.heading());
  for (const auto& row : rows) print(table.line(row));
  if (!why.empty()) std::fprintf(stderr, "stfs-gpu: no GPU: %s\n", why.c_str());
  return 0;
}

int doctor(const GpuArguments& arguments) {
  std::vector<std::string> findings = cuda_findings();
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const bool is_huge = huge.find("[never]") == std::string::npos &&
                       huge.find("[deny]") == std::string::npos && !huge.empty();
  findings.push_back("cpu: copies straight into sealed shared memory, " +
                     std::string(is_huge ? "huge pages where it helps" : "small pages") +
                     " (shmem_enabled is " + (huge.empty() ? "absent" : huge) + ")");
  findings.push_back("limits: open files " + limit_text(RLIMIT_NOFILE) + ", locked memory " +
                     limit_text(RLIMIT_MEMLOCK) + " bytes; each segment takes a file");
  std::string socket;
  try {
    socket = holder_socket_path();
    std::optional<Client> client = Client::connect("");
    if (client) {
      const HolderStatus status = client->status();
      std::uint64_t held = 0;
      for (const auto& [uuid, device] : status.devices) held += device.bytes;
      findings.push_back("holder: runs as process " + std::to_string(status.pid) + " at " + socket +
                         ", holds " + human_bytes(held));
    } else {
      findings.push_back("holder: none runs; load starts one at " + socket);
    }
  } catch (const Error& error) {
    findings.push_back(std::string("holder: cannot be reached: ") + error.what());
  }
  if (arguments.json) {
    Json rows = Json::array();
    for (const std::string& finding : findings) {
      const std::size_t colon = finding.find(": ");
      rows.push_back(
          {{"subject", finding.substr(0, colon)}, {"finding", finding.substr(colon + 2)}});
    }
    print(rows.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  for (const std::string& finding : findings) print(printable(finding) + "\n");
  return 0;
}

int bench(const GpuArguments& arguments) {
  const std::unique_ptr<Device> device = open_device(find_device(arguments.device));
  Selection selection;
  const std::vector<Item> items = selection.resolve_all(arguments.tensors, {});
  for (const Item& item : items) {
    if (item.converts() || !item.request().slice.empty()) {
      throw Error(ErrorCode::kUsage, "",
                  in_quotes(item.label()) + ": bench copies whole tensors in their own type");
    }
    if (item.request().computed) {
      throw Error(
          ErrorCode::kUsage, "",
          in_quotes(item.label()) + ": bench copies stored tensors: name the source of the mount");
    }
    if (is_url(item.request().path)) {
      throw Error(ErrorCode::kUsage, item.request().path,
                  "bench measures files of this machine: download it first");
    }
  }
  TransferOptions options;
  options.workers = arguments.workers != 0 ? arguments.workers : device->default_workers();
  if (arguments.tile_bytes != 0)
    options.tile_bytes = static_cast<std::size_t>(arguments.tile_bytes);
  Lanes lanes;
  options.lanes = &lanes;
  const Ceiling ceiling(*device, items, options.workers, options.tile_bytes);
  std::vector<std::uint64_t> sizes;
  sizes.reserve(items.size());
  for (const Item& item : items) sizes.push_back(item.bytes());
  const Layout layout = lay_out(sizes);
  const bool is_host = device->info().id == "cpu";
  std::vector<Series> all{
      {"load", [&] { transfer(*device, items, layout, options); }},
      is_host ? Series{"plain copy by as many threads", [&] { ceiling.plain_copy(); }}
              : Series{"pinned memory to the device", [&] { ceiling.bus(); }}};
  all[0].work();  // brings the source into the page cache
  for (unsigned round = 0; round < arguments.rounds; ++round) {
    // Alternate the order, so that other work of the machine slows both alike.
    for (std::size_t i = 0; i < all.size(); ++i) {
      Series& series = all[(i + round) % all.size()];
      const Clock::time_point begin = Clock::now();
      series.work();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      series.rates.push_back(static_cast<double>(ceiling.bytes()) / seconds);
    }
  }
  std::vector<double> ratios;
  for (unsigned i = 0; i < arguments.rounds; ++i) {
    ratios.push_back(all[0].rates[i] / all[1].rates[i]);
  }
  std::ranges::sort(ratios);
  const double ratio = ratios[ratios.size() / 2];
  if (arguments.json) {
    Json rows = Json::object();
    for (const Series& series : all) rows[series.name] = series.median();
    print(Json{{"device", device->info().id},
               {"uuid", device->info().uuid},
               {"bytes", ceiling.bytes()},
               {"workers", options.workers},
               {"tile_bytes", options.tile_bytes},
               {"bytes_per_second", std::move(rows)},
               {"ratio", ratio},
               {"ratio_min", ratios.front()},
               {"ratio_max", ratios.back()}}
              .dump() +
          "\n");
    return 0;
  }
  std::array<char, 160> line;
  for (const Series& series : all) {
    std::snprintf(line.data(), line.size(), "%-32s %7.2f GB/s\n", series.name,
                  series.median() / 1e9);
    print(line.data());
  }
  std::snprintf(line.data(), line.size(), "%-32s %7.2f (%.2f to %.2f)\n", "ratio", ratio,
                ratios.front(), ratios.back());
  print(line.data());
  return 0;
}

}  // namespace stfs::gpu
