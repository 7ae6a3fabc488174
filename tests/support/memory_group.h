// A memory limit: a control group of cgroups version 1 or 2 during a scope.
#pragma once

#include "tests/support/files.h"
#include "tests/support/process.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace stfs::test {

class MemoryGroup {
 public:
  MemoryGroup(const std::string& name, std::uint64_t bytes) {
    const std::filesystem::path v1 = "/sys/fs/cgroup/memory";
    const bool is_v1 = std::filesystem::exists(v1 / "memory.limit_in_bytes");
    path_ = (is_v1 ? v1 : std::filesystem::path("/sys/fs/cgroup")) / name;
    std::error_code error;
    is_made_ = std::filesystem::create_directory(path_, error);
    const std::filesystem::path limit = path_ / (is_v1 ? "memory.limit_in_bytes" : "memory.max");
    if (!is_made_) {
      missing_ = path_.string() + ": " + error.message();
    } else if (!std::filesystem::exists(limit)) {
      missing_ = "no memory cgroup at " + path_.string();
    } else {
      write_file(limit, std::to_string(bytes));
    }
  }
  ~MemoryGroup() {
    if (is_made_) eventually([&] { return ::rmdir(path_.c_str()) == 0; });
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  // Why the group is missing; "" if it exists.
  const std::string& missing() const { return missing_; }
  // The file to which a process writes its pid to enter the group.
  std::string processes() const { return path_ / "cgroup.procs"; }

 private:
  std::filesystem::path path_;
  bool is_made_ = false;
  std::string missing_;
};

}  // namespace stfs::test
