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
  // The N of a mountpoint /dev/fd/N: a descriptor of /dev/fuse that another process mounted.
  std::optional<int> descriptor;
  bool foreground = false;
  bool lazy = false;  // with kUnmount
  bool allow_missing = false;
  Layers layers;
  bool direct = false;
  bool supervise = false;
  ControlDirectory control = ControlDirectory::kHidden;
  unsigned threads = 0;   // 0: chosen by the number of processors
  unsigned max_read = 0;  // bytes; 0: libfuse's default
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  mode_t umask = 0;
  std::string fsname;  // empty: the first source
  SourceOptions remote;
  bool prefetch = false;                   // all bytes of remote sources
  std::vector<std::string> mount_options;  // for libfuse and the kernel, "key" or "key=value"
  std::string of_the_mount;  // the first option given that only the process that mounts can set

  // Whether other users may read the mount. Of a mount that was handed over this is not known.
  bool may_let_others_in() const;
};

const CommandRow& mount_command();

// Throws Error kUsage.
Options parse_options(int argc, const char* const* argv);

}  // namespace stfs
