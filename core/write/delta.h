// A new delta: what changed from one checkpoint to the next, as trainers publish it
// (core/layer/delta/version.h).
//
// Thread safety: one thread at a time for an output.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/layer/delta/version.h"
#include "core/write/new_file.h"
#include "core/write/saved.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace stfs {

struct DeltaOptions {
  std::string output;  // the new directory
  // The numbers of the version and of the one before it. By default the number at the end of
  // `output`, and one less.
  std::optional<std::uint64_t> version = {}, base = {};
  std::string encoding = "xor";       // or "overwrite"
  std::string checksum = "xxh3-128";  // or "adler32"
  std::uint64_t shard_size = 0;       // bytes; 0: one file
  std::size_t threads = 1;            // that read and compress
  AtSignal at_signal = AtSignal::kRemove;
  // Once it is set, writing ends soon with an Error of EINTR. Null: never.
  const std::atomic<bool>* stop = nullptr;
};

// Sets the numbers that are not given. Throws Error kUsage when the name of the output has none,
// and when the base is not before the version.
void set_numbers(DeltaOptions& options);

struct NewDelta {
  std::size_t changed = 0;  // tensors
  std::uint64_t bytes = 0;  // of their frames
};

// Writes the directory, whole or not at all. Throws Error kUsage when the checkpoints differ in
// more than the bytes of tensors, and kUnreadable; messages name `place` as the newer checkpoint.
// `progress` is called by several threads.
NewDelta write_delta(const Checkpoint& before, const Checkpoint& after, const std::string& place,
                     DeltaOptions options, const Progress& progress);

}  // namespace stfs
