// What the companions' main functions have in common: how the words of a command line are taken,
// and how a command ends.
#pragma once

#include "core/base/error.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stfs {

// Parses the words behind the program's name, which is the app's. Returns an exit status when that
// was all (--help, --version); throws Error kUsage. CLI11 would take a word like "[a]" for a list
// of its own: such words arrive guarded, and unguard() makes them what was typed.
std::optional<int> parse_words(CLI::App& app, std::vector<std::string> words);
void unguard(std::string& word);

// Runs a command to its exit status. What it throws becomes one line on standard error; what is no
// Error exits as `otherwise` does. Fails when standard output cannot be written.
int run_to_exit(const char* program, ErrorCode otherwise, const std::function<int()>& command);

}  // namespace stfs
