// The verbs devices and doctor.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/command/terminal.h"
#include "tools/gpu/client/client.h"
#include "tools/gpu/client/verbs.h"

#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace stfs::gpu {
namespace {

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
  // A UUID that is shortened cannot be copied, so shorten it only if the whole one does not fit.
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
      findings.push_back("holder: not running; load starts one at " + socket);
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

}  // namespace stfs::gpu
