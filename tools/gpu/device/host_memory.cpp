#include "tools/gpu/device/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace stfs::gpu {
namespace {

// The names of a control group's files in one version of cgroups.
struct Names {
  const char* limit;
  const char* used;
  const char* inactive;  // in memory.stat: page cache that was not used recently
};
constexpr Names kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names kV2{"memory.max", "memory.current", "inactive_file"};

// Returns nullopt for other words, such as "max".
std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> number_of_file(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return number_in(word);
}

// Returns the number after `name` in a file of "name number" lines.
std::optional<std::uint64_t> number_behind(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    if (words >> word && word == name && words >> word) return number_in(word);
  }
  return std::nullopt;
}

bool lists(const std::string& names, std::string_view name) {
  std::istringstream list(names);
  for (std::string one; std::getline(list, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

// A mount of memory control groups: one line of mountinfo, see proc(5).
struct Hierarchy {
  bool is_v2 = false;
  std::string mountpoint;
  std::string group;  // the group at the mount point
};

std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, type, options;
    Hierarchy hierarchy;
    words >> skipped >> skipped >> skipped >> hierarchy.group >> hierarchy.mountpoint;
    while (words >> skipped && skipped != "-") {
    }
    words >> type >> skipped >> options;
    hierarchy.is_v2 = type == "cgroup2";
    if (!hierarchy.is_v2 && (type != "cgroup" || !lists(options, "memory"))) continue;
    found.push_back(std::move(hierarchy));
  }
  return found;
}

// Returns the group of this process in a hierarchy, from /proc/self/cgroup: see cgroups(7).
std::string group_of_process(const std::string& root, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const bool is_this =
        is_v2 ? number == "0" && controllers.empty() : lists(controllers, "memory");
    if (is_this) return path;
  }
  return "";
}

// Returns the part of `path` below `top`, or "" if `path` is outside, as in a container that sees
// only its own group.
std::string below(const std::string& path, const std::string& top) {
  if (path.find("/..") != std::string::npos || path == "/") return "";
  if (top == "/") return path;
  return path.starts_with(top + "/") ? path.substr(top.size()) : "";
}

void limit_to_group(const std::string& group, const Names& names, HostMemory& memory) {
  const auto limit = number_of_file(group + "/" + names.limit);
  if (!limit) return;
  memory.total = std::min(memory.total, *limit);
  std::uint64_t used = number_of_file(group + "/" + names.used).value_or(0);
  used -= std::min(used, number_behind(group + "/memory.stat", names.inactive).value_or(0));
  memory.available = std::min(memory.available, *limit - std::min(*limit, used));
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  const auto meminfo = [&](std::string_view name) {
    return number_behind(root + "/proc/meminfo", name).value_or(0) * 1024;
  };
  HostMemory memory{.total = meminfo("MemTotal:"), .available = meminfo("MemAvailable:")};
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    // The limits of all parent groups apply as well.
    std::string group = below(group_of_process(root, hierarchy.is_v2), hierarchy.group);
    for (;;) {
      limit_to_group(root + hierarchy.mountpoint + group, hierarchy.is_v2 ? kV2 : kV1, memory);
      if (group.empty()) break;
      group.resize(group.rfind('/'));
    }
  }
  return memory;
}

}  // namespace stfs::gpu
