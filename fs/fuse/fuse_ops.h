// The table of FUSE operations. A callback decodes its arguments, calls FileSystem and replies. No
// exception passes through libfuse's C frames: it becomes an errno here.
//
// Thread safety: libfuse calls the callbacks on any thread.
#pragma once

#include "fs/fuse/fuse_version.h"
// fuse_version.h comes before libfuse's headers: FUSE_USE_VERSION selects their interface.
#include "fs/mount/filesystem.h"

#include <fuse_lowlevel.h>

#include <atomic>

namespace stfs {

// The session's user data, for the callbacks. Must outlive the session.
struct FuseContext {
  FileSystem* filesystem = nullptr;  // set before the first request
  Ledger* ledger = nullptr;          // of a supervised worker, else null
  bool direct = false;               // -o cache=direct: the kernel caches no file pages
  unsigned max_read = 0;             // bytes per request; 0: libfuse's default
  // -o allow_root: libfuse refuses opendir to other users, and answers their readdir.
  bool has_private_listings = false;
  std::atomic<bool> is_unmounted = false;  // nobody waits for what is computed
  // Set by the handshake:
  unsigned max_write = 0;      // bytes of data that the kernel may send with a request
  bool opendir_needed = true;  // listings are private, or this kernel does not accept ENOSYS
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace stfs
