// A FUSE mount. The constructor mounts and the destructor unmounts. The process that mounts owns
// the mount. If the mountpoint is /dev/fd/N, another process has mounted and owns the mount: the
// constructor takes over the descriptor, and nothing here unmounts. Such a mount ends when its
// owner unmounts it, or when the last process with the descriptor ends.
//
// A supervised worker (supervisor.h) is a fork and has a copy of this object. It serves the mount
// (session.h) and exits without running the destructor. If its supervisor has died, the worker
// calls detach() itself.
//
// Thread safety: none; all members must be called on the thread that constructed it. session() may
// be used by any thread, as libfuse permits.
#pragma once

#include "fs/fuse/options.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

struct fuse_session;

namespace stfs {

struct FuseContext;

// Returns the last line of a message of libfuse or fusermount3(1), without the program's name.
std::string last_line(std::string text);

class Mount {
 public:
  // Mounts, unless the mount is handed over, and reads the kernel's handshake. `context` is the
  // user data of the FUSE callbacks and must outlive this. Throws Error kUsage for an option that
  // libfuse does not know, and Error kMountFailed.
  Mount(const Options& options, FuseContext& context);
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();  // unmounts, unless the mount has ended already

  // Unmounts lazily (MNT_DETACH): open files remain readable while a process serves the mount. Does
  // nothing if the mount has ended already, is covered by another mount, or was handed over.
  void detach() const noexcept;

  const std::string& mountpoint() const { return mountpoint_; }
  fuse_session* session() const { return session_; }
  std::span<const std::byte> handshake() const { return handshake_; }  // FUSE_INIT

 private:
  void await_handshake() const;
  void read_handshake();
  bool is_disconnected() const;

  std::string mountpoint_;
  bool is_handed_over_;
  std::string device_;  // "MAJOR:MINOR", as in mountinfo
  fuse_session* session_ = nullptr;
  std::vector<std::byte> handshake_;
};

}  // namespace stfs
