// The holder's listening socket and its path.
//
//     listen_at ───┬──> listening ──1──> retired
//     handed_over ─┘     │ ▲   └────2──> removed
//                       3│ │4
//                        ▼ │
//                        lost
//
//   1  retire(), by an idle holder: renames the path, so that no client finds it, then checks the
//      queue. If a client waits, renames the path back and keeps listening; else unlinks it.
//   2  remove(), at the holder's end: the same without the check
//   3  anybody: the socket's file is removed, alone or with its directory, or replaced
//   4  restore(), by the holder: binds a new socket to the path
//
// flock(2) on a file beside the path serialises all processes that read or change it. Both
// of the first transitions leave the path alone when systemd owns it (handed_over), or when its
// device and inode number differ from the bound socket's: a successor may listen there. An open
// socket keeps its inode, so no other file can have that number.
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
  // The socket that systemd passes to this process (sd_listen_fds(3)); nothing without one. Throws
  // Error kDeviceFailed when the descriptor is not a listening socket.
  static std::optional<HolderSocket> handed_over();

  // A new socket at `path`, mode 0600; nothing when another process listens there. Replaces a
  // socket without a listener; any other file is an error. Throws Error kDeviceFailed.
  static std::optional<HolderSocket> listen_at(const std::string& path);

  int fd() const { return listener_.get(); }
  const std::string& path() const { return path_; }  // "" where it is not known

  // Whether clients do not find this socket at its path any more.
  bool is_lost() const;
  // Listens at the path again, and drops clients in the queue of the lost socket. Returns false
  // where another process listens there or begins to, where systemd owns the path, and in a
  // directory that is neither the one of the lost socket nor one that this user alone can write to.
  bool restore() noexcept;

  // Unlinks the path, so that the next client starts another holder. Returns false, and changes
  // nothing, when a client waits in the queue, or when the path cannot be looked at.
  bool retire() noexcept;
  // Unlinks the path without checking the queue. If that fails, the next holder replaces the
  // socket.
  void remove() noexcept;

 private:
  using Inode = std::pair<dev_t, ino_t>;

  explicit HolderSocket(UniqueFd listener) : listener_(std::move(listener)) {}

  static std::optional<HolderSocket> listen(const std::string& path, bool waits_for_lock);
  bool unlink_path(bool even_if_client_waits);

  UniqueFd listener_;
  std::string path_;  // empty: not known, or unlinked
  bool is_systemds_ = false;
  Inode inode_{};      // of the path after bind(2)
  Inode directory_{};  // of the path's directory
};

}  // namespace stfs::gpu
