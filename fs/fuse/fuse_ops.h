// The table of FUSE operations. A callback decodes its arguments, calls FileSystem, and replies; it
// decides nothing. This is where errno goes out to the kernel, and where no exception gets through.
#pragma once

#include "fs/fuse/fuse_version.h"
// The version comes first: libfuse chooses its interface by it.
#include "fs/mount/filesystem.h"

#include <fuse_lowlevel.h>

namespace stfs {

// What the callbacks need; the session's user data. Outlives the session.
struct FuseContext {
  FileSystem* filesystem = nullptr;  // there before the first request
  Ledger* ledger = nullptr;          // of a supervised worker
  bool direct = false;               // -o cache=direct: no pages of files are kept by the kernel
  unsigned max_read = 0;             // bytes a request, 0 for what kernel and libfuse agree on
  // What the handshake says:
  unsigned max_write = 0;      // bytes of data that the kernel may send with a request
  bool opendir_needed = true;  // this kernel has to open directories
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace stfs
