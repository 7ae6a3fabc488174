// New files of checkpoints: one safetensors or GGUF file, or a directory with shards. `extract` and
// `edit` write through this.
//
// Thread safety: one thread calls it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/recipe/content.h"
#include "tools/info/verbs.h"

#include <cstdint>
#include <span>
#include <string>

namespace stfs {

// For messages: what is read, and what is written.
struct CopyNames {
  const std::string& source;
  const std::string& output;
};
// Writes a recipe to `fd`, and returns the bytes that the file shares with its sources. Throws Error
// kUnreadable.
std::uint64_t write_bytes(const Checkpoint& checkpoint, const Content& content, int fd,
                          const CopyNames& names, ProgressBar* bar);

// Writes these tensors to Arguments::output, whole or not at all, and returns the exit status.
// Throws Error: kUsage for what the format cannot hold and for a file that is there or is read;
// kUnreadable for a read or a write that fails.
int save(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
         const Arguments& arguments, const Sources& sources);

}  // namespace stfs
