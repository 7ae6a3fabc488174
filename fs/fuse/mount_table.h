// The mounts that this process sees (/proc/self/mountinfo), checks of a mountpoint, and unmounting.
//
// Thread safety: free functions without state, safe to call from any thread.
#pragma once

#include "core/base/posix.h"

#include <optional>
#include <string>
#include <string_view>

namespace stfs {

struct MountEntry {
  std::string type;    // "fuse.stfs"
  std::string source;  // the fsname
  std::string device;  // "MAJOR:MINOR", unique among all current mounts
};

// Returns the topmost mount at `path` (absolute, resolved) in the text of a mountinfo file
// (proc(5)), or nullopt.
std::optional<MountEntry> find_mount(std::string_view mountinfo, const std::string& path);

// Calls find_mount() with /proc/self/mountinfo.
std::optional<MountEntry> mounted_at(const std::string& path);

// Returns the absolute path of a mountpoint with symbolic links resolved, even if a dead mount
// there makes stat(2) fail. Throws Error kMountFailed; `advice` says what to do if the path does
// not exist.
std::string resolve_mountpoint(const std::string& path, const std::string& advice);

// Checks that `path` (absolute) is a directory without a mount, and that /dev/fuse exists. Throws
// Error kMountFailed.
void check_mountpoint(const std::string& path);

// Checks that a descriptor which this process has inherited refers to /dev/fuse, and makes it
// close-on-exec and blocking. Throws Error kMountFailed; `place` is "/dev/fd/N".
void check_descriptor(int descriptor, const std::string& place);

// Locks `path` against other stfs processes with flock(2) while the descriptor lives, and checks
// again that nothing is mounted there. Returns an empty descriptor if the directory cannot be
// opened. Throws Error kMountFailed if another process has the lock.
UniqueFd lock_mountpoint(const std::string& path);

// Raises the readahead of a mount's device, if this process may (as root), because readers would
// often have to wait with the kernel's default of 128 KiB. Does not lower a larger value.
constexpr unsigned kReadaheadKib = 2048;
void raise_readahead(const std::string& device);

// Unmounts a mount of stfs: by umount2(2), or by fusermount3(1) if that is not permitted. Throws
// Error kMountFailed if that fails or if the mount is not of stfs.
void unmount(const std::string& path, bool lazy);

}  // namespace stfs
