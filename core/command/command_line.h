// The common part of the main functions of stfs-info and stfs-gpu.
//
// Thread safety: only the main thread calls these functions, before it starts other threads.
#pragma once

#include "core/base/error.h"
#include "core/command/command.h"

#include <functional>
#include <string>
#include <vector>

namespace stfs {

// Parses the words after the program's name into `arguments` and runs the verb with them. Prints
// the help, the version or a shell's candidates (complete.h) instead if the words ask for that.
// Returns the exit status. Throws Error, and any exception of the verb.
int run_command(const CommandRow& command, std::vector<std::string> words, void* arguments);

// Runs a command and returns its exit status. Prints an exception as one line on standard error,
// and returns the status of its ErrorCode, or of `otherwise` for every exception that is not an
// Error. Returns the status of kUnreadable if standard output cannot be written.
int run_to_exit(const char* program, ErrorCode otherwise, const std::function<int()>& command);

}  // namespace stfs
