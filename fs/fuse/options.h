// The command line of stfs: the table of its options, and the parsed result.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/command/command.h"
#include "core/layer/layer.h"
#include "core/remote/sources.h"
#include "fs/mount/nodes.h"

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace stfs {

struct Options {
  enum class Command { kMount, kUnmount, kHelp, kVersion };

  Command command = Command::kMount;
  std::vector<std::string> sources;
  std::string mountpoint;
  // The N of a mountpoint /dev/fd/N: a descriptor of /dev/fuse for a mount that another process
  // made.
  std::optional<int> descriptor;
  bool foreground = false;
  bool lazy = false;  // with kUnmount
  bool allow_missing = false;
  Layers layers;
  bool direct = false;
  bool supervise = false;
  ControlDirectory control = ControlDirectory::kHidden;
  unsigned threads = 0;   // 0: the default (64)
  unsigned max_read = 0;  // bytes; 0: libfuse's default
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  mode_t umask = 0;
  std::string fsname;  // "": the first source
  SourceOptions remote;
  bool prefetch = false;                   // fetch all bytes of remote sources
  std::vector<std::string> mount_options;  // for libfuse and the kernel, "key" or "key=value"
  // The first given option that only the process that mounts can set; "" if none was given.
  std::string mount_only_option;

  // Returns true if other users may read the mount. Also true if the mount was handed over, because
  // it is then unknown.
  bool allows_other_users() const;
};

// Returns the table of options, for the parser, --help and the man page.
const CommandRow& mount_command();

// Parses the command line. Throws Error kUsage.
Options parse_options(int argc, const char* const* argv);

}  // namespace stfs
