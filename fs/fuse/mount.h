// A FUSE mount: mounts in the constructor and unmounts in the destructor. The process that mounts
// owns it. If the mountpoint is /dev/fd/N, another process has mounted and owns it: the constructor
// takes the descriptor, and nothing here unmounts. The mount ends when its owner unmounts it, or
// when the last process with the descriptor ends.
//
// A supervised worker (supervisor.h) is a fork and has a copy of this object. It serves the mount
// (session.h) and exits without running the destructor. If its supervisor has died, the worker
// calls detach() itself.
//
// Thread safety: none; call all members on the thread that constructed it. session() may be used by
// any thread, as libfuse permits.
#pragma once

#include "fs/fuse/options.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

struct fuse_session;

namespace stfs {

struct FuseContext;

// The last line of a message of libfuse or fusermount3(1), without the program's name before it.
std::string last_line(std::string text);

class Mount {
 public:
  // Mounts, unless the mount is handed over, and reads the kernel's handshake. `context` is the
  // user data of the FUSE callbacks and must outlive this. Throws Error kUsage for an unknown
  // option, and kMountFailed.
  Mount(const Options& options, FuseContext& context);
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();  // unmounts, unless it is unmounted

  // Unmounts lazily (MNT_DETACH): open files can be read while a process serves the mount. Does
  // nothing if it is unmounted or aborted already, lies under another mount, or was handed over.
  void detach() const noexcept;

  const std::string& mountpoint() const { return mountpoint_; }
  fuse_session* session() const { return session_; }
  std::span<const std::byte> handshake() const { return handshake_; }  // a FUSE_INIT request

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
