// The holder's listening socket and its path.
//
//     listen_at ───┬──> listening ──1──> retired
//     handed_over ─┘     │ ▲   └────2──> removed
//                       3│ │4
//                        ▼ │
//                        lost
//
//   1  An idle holder calls retire(). It renames the path, so that no client finds it, then checks
//      the queue. If a client waits, it renames the path back and keeps listening; otherwise it
//      unlinks the path.
//   2  A holder that exits calls remove(), which does the same without the check.
//   3  Any process removes or replaces the socket's file, or removes its directory.
//   4  The holder calls restore(), which binds a new socket to the path.
//
// flock(2) on a file beside the path serialises all processes that read or change the path.
// Transitions 1 and 2 do not touch the path if systemd owns it (handed_over), or if it is another
// inode than the bound socket (device and inode number), because a successor may listen there. An
// open socket keeps its inode, so no other file can have the same number.
//
// Thread safety: one thread at a time.
#pragma once

#include "core/base/posix.h"

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

namespace stfs::gpu {

class HolderSocket {
 public:
  // Returns the socket that systemd passed to this process (sd_listen_fds(3)), or nullopt if there
  // is none. Throws Error kDeviceFailed if the descriptor is not a listening socket.
  static std::optional<HolderSocket> handed_over();

  // Creates a socket at `path`, with mode 0600. Returns nullopt if another process listens there.
  // Replaces a socket without a listener; any other file is an error. Throws Error kDeviceFailed.
  static std::optional<HolderSocket> listen_at(const std::string& path);

  int fd() const { return listener_.get(); }
  const std::string& path() const { return path_; }  // "" if it is not known

  // Returns true if clients can no longer find this socket at its path.
  bool is_lost() const;
  // Listens at the path again, and drops the clients in the queue of the lost socket. Returns false
  // if another process listens there or is about to, if systemd owns the path, and if the path's
  // directory is another one than before, unless only this user can write to it.
  bool restore() noexcept;

  // Unlinks the path, so that the next client starts another holder. Returns false, and changes
  // nothing, if a client waits in the queue or the path cannot be examined.
  bool retire() noexcept;
  // Unlinks the path without checking the queue. If this fails, the next holder replaces the
  // socket.
  void remove() noexcept;

 private:
  using Inode = std::pair<dev_t, ino_t>;

  explicit HolderSocket(UniqueFd listener) : listener_(std::move(listener)) {}

  static std::optional<HolderSocket> listen(const std::string& path, bool waits_for_lock);
  bool unlink_path(bool even_if_client_waits);

  UniqueFd listener_;
  std::string path_;          // "" if it is not known, or was unlinked
  bool is_systemds_ = false;  // systemd passed the socket and owns the path
  Inode inode_{};             // the path after bind(2)
  Inode directory_{};         // the directory of the path
};

}  // namespace stfs::gpu
