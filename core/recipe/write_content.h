// Writes a recipe to a file. Extents of local files are shared with the new file if the file system
// can do this (FICLONERANGE), or else copied in the kernel (copy_file_range(2)). All other bytes
// are copied through memory.
//
// Thread safety: one thread at a time writes to a descriptor.
#pragma once

#include "core/recipe/content.h"

#include <atomic>
#include <cstdint>
#include <functional>

namespace stfs {

// The size in bytes of the blocks that XFS and btrfs can share between files.
inline constexpr std::uint64_t kShareBlock = 4096;

// Returns the part of an extent that a new file can share if the extent is at offset `at` of the
// new file. The part is relative to the beginning of the extent and consists of whole blocks. Its
// length is 0 if `at` and the extent's offset differ modulo kShareBlock.
ByteRange shareable_part(std::uint64_t at, const Extent& extent);

struct Written {
  std::uint64_t shared = 0, copied = 0;  // bytes
  int error = 0;                         // an errno, or 0
  bool failed_reading = false;           // reading or verifying failed, not writing
};

// Writes all of `content` to `fd`. If `fd` is a regular file at offset 0 without O_APPEND, extents
// are shared or copied in the kernel; otherwise `fd` is treated as a stream. Fetches missing bytes
// of remote sources. Calls `progress` with the number of bytes after each step. Verifies the
// sources at the end. Fails with EINTR soon after `stop` is set; `stop` may be null.
Written write_content(const Content& content, int fd,
                      const std::function<void(std::uint64_t bytes)>& progress,
                      const std::atomic<bool>* stop = nullptr);

// Returns true if the file system of `fd` can share blocks with the extent's file. To find out, it
// shares one block of the extent at the beginning of the file `fd`, which overwrites the bytes
// there.
bool can_share(const Extent& extent, int fd);

}  // namespace stfs
