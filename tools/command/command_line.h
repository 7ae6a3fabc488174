// What the companions' main functions have in common: how a verb is run, and how a command ends.
#pragma once

#include "core/base/command.h"
#include "core/base/error.h"

#include <functional>
#include <string>
#include <vector>

namespace stfs {

// Does what the words behind the program's name ask for: --help, --version, or a verb, which gets
// `arguments`. Returns the exit status; throws Error.
int run_command(const CommandRow& command, std::vector<std::string> words, void* arguments);

// Runs a command to its exit status. What it throws becomes one line on standard error; what is no
// Error exits as `otherwise` does. Fails when standard output cannot be written.
int run_to_exit(const char* program, ErrorCode otherwise, const std::function<int()>& command);

}  // namespace stfs
