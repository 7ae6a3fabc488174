// A mount, from the moment that it is made until it is taken away. The process that made it owns
// it.
//
// A supervised worker (supervisor.h) is a fork, and finds a copy of this object in its memory. It
// serves the mount (session.h), and ends without running the destructor. It may call detach() when
// its supervisor has died: then nobody else is left to do it.
//
// Thread safety: none; all of it is called on the thread that made it.
#pragma once

#include "fs/fuse/options.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

struct fuse_session;

namespace stfs {

struct FuseContext;

// The last line of what libfuse or fusermount3(1) wrote, without the name that begins it.
std::string last_line(std::string text);

class Mount {
 public:
  // Mounts, and reads the kernel's handshake. `context` is the user data of the FUSE callbacks.
  // Throws Error kUsage for an option that neither libfuse nor the kernel knows, and kMountFailed.
  Mount(const Options& options, FuseContext& context);
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  ~Mount();  // unmounts, if that was not done before

  // Takes the mount away from where it is, also while files in it are open: those who have them
  // open can read on as long as it is served. Does nothing when it is gone already or was aborted,
  // and when it lies under another mount.
  void detach() const noexcept;

  const std::string& place() const { return place_; }
  fuse_session* session() const { return session_; }
  std::span<const std::byte> handshake() const { return handshake_; }  // a FUSE_INIT request

 private:
  void read_handshake();
  bool is_disconnected() const;

  std::string place_;
  std::string device_;  // of the mount, as mountinfo names it
  fuse_session* session_ = nullptr;
  std::vector<std::byte> handshake_;
};

}  // namespace stfs
