// Writes a new delta: the changes from one checkpoint to the next, in the format in which trainers
// publish them (core/layer/delta/version.h).
//
// Thread safety: one thread at a time may write to an output.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/layer/delta/version.h"
#include "core/write/new_file.h"
#include "core/write/save.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace stfs {

struct DeltaOptions {
  std::string output;  // the new directory
  // The numbers of the version and of its base. By default the version is the number at the end of
  // `output`, and the base is one less.
  std::optional<std::uint64_t> version = {}, base = {};
  std::string encoding = "xor";       // or "overwrite"
  std::string checksum = "xxh3-128";  // or "adler32"
  std::uint64_t shard_size = 0;       // bytes; 0: one file
  std::size_t threads = 1;            // threads that read and compress
  SignalCleanup at_signal = SignalCleanup::kRemove;
  // Once it is set, writing soon ends with an Error of EINTR. Null: writing cannot be stopped.
  const std::atomic<bool>* stop = nullptr;
};

// Sets the numbers that are not given. Throws Error kUsage if the name of the output does not end
// in a number, or if the base is not less than the version.
void set_numbers(DeltaOptions& options);

struct NewDelta {
  std::size_t changed = 0;  // the number of tensors that changed
  std::uint64_t bytes = 0;  // the size of their frames
};

// Writes the directory. It appears complete or not at all. Throws Error kUsage if the checkpoints
// differ in more than the bytes of tensors, and Error kUnreadable. Messages name `place` as the
// newer checkpoint. `progress` is called by several threads.
NewDelta write_delta(const Checkpoint& before, const Checkpoint& after, const std::string& place,
                     DeltaOptions options, const Progress& progress);

}  // namespace stfs
