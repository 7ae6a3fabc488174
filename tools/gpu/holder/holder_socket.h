// The socket that the holder listens on, and its path.
//
//   listen_at ──> listening ──retire, remove──> path taken away
//                     └───────────────────────> path is another's: left alone
//
// A process that looks at the path or changes it holds a lock (flock(2)) on a file beside it.
// A holder takes the path away only while it still leads to the socket that this holder bound: by
// then somebody may have removed it, and a successor may listen there. Device and inode number tell
// them apart: a socket keeps its inode until it is closed, so no other file can have that number.
//
// Not thread-safe.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

namespace stfs::gpu {

class HolderSocket {
 public:
  // What systemd listens on for this process (sd_listen_fds(3)); nothing when it does not. The path
  // is systemd's. Throws Error kDeviceFailed for a descriptor that is no listening socket.
  static std::optional<HolderSocket> handed_over();

  // A socket at `path` that this user alone can reach; nothing when somebody listens there. A
  // socket without a listener is replaced, any other file is an error. Throws Error kDeviceFailed.
  static std::optional<HolderSocket> listen_at(const std::string& path);

  int fd() const { return listener_.get(); }

  // Takes the path away, so that the next client starts another holder; false, and nothing changes,
  // when a client has connected meanwhile.
  bool retire() { return take_away(false); }
  // Takes the path away, for the end of the holder. When that fails, the next one replaces it.
  void remove() noexcept;

 private:
  using Inode = std::pair<dev_t, ino_t>;

  explicit HolderSocket(UniqueFd listener) : listener_(std::move(listener)) {}

  bool take_away(bool even_if_wanted);

  UniqueFd listener_;
  std::string path_;  // empty: not ours to take away
  Inode inode_{};     // of the path, as it was bound
};

}  // namespace stfs::gpu
