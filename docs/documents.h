// Generates the man page and the completions of a command from its table, at build time.
//
// Thread safety: these functions may be called from any thread.
#pragma once

#include "core/command/command.h"

#include <string>
#include <string_view>
#include <vector>

namespace stfs::documents {

// The man page (mdoc(7)): `page` with @VERSION@ and the lines @SYNOPSIS@, @OPTIONS@ and
// @MOUNT_OPTIONS@ replaced.
std::string man_page(const CommandRow& command, std::string page);

std::string joined(const std::vector<std::string_view>& parts, std::string_view between);

// The completion scripts, whole files.
std::string bash_completion(const CommandRow& command);
std::string zsh_completion(const CommandRow& command);

}  // namespace stfs::documents
