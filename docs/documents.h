// What is made of the table of a command at build time: its man page and its completions.
//
// Thread safety: these functions may be called from any thread.
#pragma once

#include "core/base/command.h"

#include <string>
#include <string_view>
#include <vector>

namespace stfs::documents {

// The page with the lines @SYNOPSIS@, @OPTIONS@ and @MOUNT_OPTIONS@ filled in.
std::string man_page(const CommandRow& command, std::string page);

std::string joined(const std::vector<std::string_view>& parts, std::string_view between);

std::string bash_completion(const CommandRow& command);
std::string zsh_completion(const CommandRow& command);

}  // namespace stfs::documents
