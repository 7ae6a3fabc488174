// The resources of a serving process, for tests of leaks.
#pragma once

#include "tests/support/files.h"

#include <sys/types.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace stfs::test {

struct DaemonFigures {
  explicit DaemonFigures(pid_t pid) {
    const std::string process = "/proc/" + std::to_string(pid);
    const std::string status = read_file(process + "/status");
    const auto field = [&](const char* name) -> std::uint64_t {
      const std::size_t at = status.find(std::string("\n") + name + ":");
      if (at == std::string::npos) return 0;
      return std::strtoull(status.c_str() + status.find(':', at) + 1, nullptr, 10);
    };
    resident = field("RssAnon") << 10;
    most_resident = field("VmHWM") << 10;
    threads = field("Threads");
    descriptors = names_in(process + "/fd").size();
  }

  std::uint64_t resident = 0;       // bytes, without mapped pages of the source
  std::uint64_t most_resident = 0;  // bytes, the peak
  std::uint64_t threads = 0;
  std::uint64_t descriptors = 0;
};

}  // namespace stfs::test
