// What is mounted where, as this process sees it, and taking it away again.
#pragma once

#include "core/base/posix.h"

#include <optional>
#include <string>
#include <string_view>

namespace stfs {

struct MountEntry {
  std::string type;    // "fuse.stfs"
  std::string source;  // what was mounted
  std::string device;  // "MAJOR:MINOR", which no other mount has as long as this one lives
};

// The topmost mount exactly at `path` (absolute, resolved) in the text of a mountinfo file, as
// proc(5) describes it.
std::optional<MountEntry> find_mount(std::string_view mountinfo, const std::string& path);

// find_mount in /proc/self/mountinfo.
std::optional<MountEntry> mounted_at(const std::string& path);

// The absolute path of a mountpoint, symbolic links in its directory resolved, also when what is
// mounted there is dead and cannot be looked at. Throws Error kMountFailed.
std::string resolve_mountpoint(const std::string& path);

// Checks that something can be mounted at `path` (absolute): a directory, nothing mounted there,
// /dev/fuse present. Throws Error kMountFailed.
void check_mountpoint(const std::string& path);

// Keeps others from mounting at `path` as long as the descriptor lives, and checks again that
// nothing is mounted there. Throws Error kMountFailed when another process is about to mount there.
UniqueFd lock_mountpoint(const std::string& path);

// How much the kernel reads ahead in the files of a mount, as far as that is permitted: root may.
// The kernel's own 128 KiB keep a reader waiting. A larger value that is set already stays.
constexpr unsigned kReadaheadKib = 2048;
void raise_readahead(const std::string& device);

// Unmounts an stfs mount, by umount2(2) where that is permitted and by fusermount3(1) where not.
// Throws Error kMountFailed, also when what is mounted there is not stfs.
void unmount(const std::string& path, bool lazy);

}  // namespace stfs
