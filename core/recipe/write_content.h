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

inline constexpr std::uint64_t kShareBlock = 4096;  // the block in bytes that XFS and btrfs share

// Returns the part of an extent, relative to its begin, that a file can share if it has the extent
// at offset `at`. The part consists of whole blocks. Its length is 0 if the extent begins at
// different positions of a block in the two files.
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

// Returns true if the file system of `fd` can share blocks of the extent's file. To find out,
// shares one block of the extent with the beginning of `fd`.
bool can_share(const Extent& extent, int fd);

}  // namespace stfs
