// The table of FUSE operations. A callback decodes its arguments, calls FileSystem and replies. No
// exception passes through libfuse's C frames: each becomes an errno here.
//
// Thread safety: libfuse calls the callbacks on any thread.
#pragma once

#include "fs/fuse/fuse_version.h"
// fuse_version.h must precede libfuse's headers, because FUSE_USE_VERSION selects their interface.
#include "fs/mount/filesystem.h"

#include <fuse_lowlevel.h>

#include <atomic>

namespace stfs {

// The session's user data, for the callbacks. Must outlive the session.
struct FuseContext {
  FileSystem* filesystem = nullptr;  // set before the first request
  Ledger* ledger = nullptr;          // the ledger of a supervised worker, or null
  bool direct = false;               // -o page_cache=direct: the kernel caches no file pages
  unsigned max_read = 0;             // bytes per request; 0: libfuse's default
  // Set with -o allow_root. libfuse then refuses opendir by other users, but would answer their
  // readdir, so opendir must stay enabled.
  bool has_private_listings = false;
  std::atomic<bool> is_unmounted = false;  // no reader waits for computations any more
  // Set by the handshake:
  unsigned max_write = 0;      // maximum bytes of data in a request of the kernel
  bool opendir_needed = true;  // listings are private, or this kernel does not support ENOSYS
};

const fuse_lowlevel_ops& fuse_operations();

}  // namespace stfs
