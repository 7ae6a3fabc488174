#include "core/base/spawn.h"

#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string_view>

namespace stfs {

int spawn(std::vector<std::string> words, SpawnOptions options, pid_t& pid) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (std::string& variable : options.variables) environment.push_back(variable.data());
  for (char** inherited = environ; *inherited != nullptr; ++inherited) {
    const std::string_view text(*inherited);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool is_replaced = std::ranges::any_of(
        options.variables, [&](const std::string& own) { return own.starts_with(name); });
    if (name.empty() || !is_replaced) environment.push_back(*inherited);
  }
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  int error = 0;
  for (const auto& [ours, theirs] : options.descriptors) {
    if (error == 0) error = ::posix_spawn_file_actions_adddup2(&actions, ours, theirs);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t limit;  // SIGXFSZ gets its default action again, because run_to_exit() ignores it
  ::sigemptyset(&limit);
  ::sigaddset(&limit, SIGXFSZ);
  ::posix_spawnattr_setsigdefault(&attributes, &limit);
  const int group = options.leads_group ? POSIX_SPAWN_SETPGROUP : 0;
  ::posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  if (error == 0) {
    error = ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(),
                           environment.data());
  }
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace stfs
