// Writes a recipe to a file: what lies in a local file is shared with it where the file system can
// (FICLONERANGE), else copied in the kernel (copy_file_range(2)); the rest goes through memory.
//
// Thread safety: one thread at a time writes to a descriptor.
#pragma once

#include "core/recipe/content.h"

#include <atomic>
#include <cstdint>
#include <functional>

namespace stfs {

inline constexpr std::uint64_t kShareBlock = 4096;  // bytes that files share at a time: XFS, btrfs

// The part of an extent, in whole blocks, that a file with the extent at `at` can share with its
// source: bytes of the extent; a length of 0 where the two lie at different places in their blocks.
ByteRange shareable_part(std::uint64_t at, const Extent& extent);

struct Written {
  std::uint64_t shared = 0, copied = 0;  // bytes
  int error = 0;                         // an errno
  bool is_of_source = false;             // it came of reading; else of writing
};

// Writes all of `content` from the beginning of `fd` on: a regular file that is open for writing,
// and else a stream. Tells `progress` the bytes of each step. The sources are verified at the end.
// Gives up with EINTR soon after `stop` is set; null: never.
Written write_content(const Content& content, int fd,
                      const std::function<void(std::uint64_t bytes)>& progress,
                      const std::atomic<bool>* stop = nullptr);

// Whether the file system of `fd` can share a block of a local file.
bool can_share(const Extent& extent, int fd);

}  // namespace stfs
