// Generates the man page of a command from its table, at build time.
//
// Thread safety: man_page() may be called from any thread.
#pragma once

#include "core/command/command.h"

#include <string>

namespace stfs::documents {

// The man page (mdoc(7)): `page` with @VERSION@ and the lines @SYNOPSIS@, @OPTIONS@ and
// @MOUNT_OPTIONS@ replaced.
std::string man_page(const CommandRow& command, std::string page);

}  // namespace stfs::documents
