// Starts another program.
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
  // Descriptors of this process, and their numbers in the program, where they are open whatever
  // their close-on-exec here (glibc 2.29). Others with close-on-exec are closed there.
  std::vector<std::pair<int, int>> descriptors = {};
  std::vector<std::string> variables = {};  // "NAME=VALUE", in place of those of this process
  bool leads_group = false;                 // a process group of its own
};

// posix_spawnp(3) of `words`, of which the first is the program; no signal is blocked in it.
// Returns 0 and sets `pid`, or returns an errno.
int spawn(std::vector<std::string> words, SpawnOptions options, pid_t& pid);

}  // namespace stfs
