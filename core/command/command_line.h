// The common part of the main functions of stfs-info and stfs-gpu.
//
// Thread safety: the main thread calls these, before it starts others.
#pragma once

#include "core/base/error.h"
#include "core/command/command.h"

#include <functional>
#include <string>
#include <vector>

namespace stfs {

// Parses the words after the program's name into `arguments` and runs the verb with them, or prints
// the help, the version or what a shell may complete (complete.h). Returns the exit status; throws
// Error, and any exception of the verb.
int run_command(const CommandRow& command, std::vector<std::string> words, void* arguments);

// Runs a command and returns its exit status. Prints an exception as one line on standard error and
// returns the status of its ErrorCode; `otherwise` is the code of an exception that is not an
// Error. Returns that of kUnreadable when standard output cannot be written.
int run_to_exit(const char* program, ErrorCode otherwise, const std::function<int()>& command);

}  // namespace stfs
