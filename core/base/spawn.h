// Starts another program as a child process.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs {

struct SpawnOptions {
  // Pairs of a descriptor of this process and its number in the program. These are open in the
  // program even if they have the close-on-exec flag here, which needs glibc 2.29. Other
  // descriptors with the flag are closed in the program.
  std::vector<std::pair<int, int>> descriptors = {};
  // Environment variables "NAME=VALUE". The program inherits all other variables of this process.
  std::vector<std::string> variables = {};
  bool leads_group = false;  // the program gets a process group of its own
};

// Calls posix_spawnp(3). The first of `words` is the program, which is searched for in PATH. No
// signal is blocked in the program. Returns 0 and sets `pid`, or returns an errno. The caller waits
// for the child (waitpid(2)).
int spawn(std::vector<std::string> words, SpawnOptions options, pid_t& pid);

}  // namespace stfs
