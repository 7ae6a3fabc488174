// New files of a checkpoint: one safetensors or GGUF file, or a directory with shards and the files
// for loaders.
//
// A Plan is what would be written; write_file() and write_directory() write it. Bytes of local
// files are shared with them where the file system can (core/recipe/written.h).
//
// Thread safety: one thread at a time uses a Plan. Lifetime: the checkpoint outlives it.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"
#include "core/write/gguf_writer.h"
#include "core/write/new_file.h"
#include "core/write/writer.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace stfs {

struct SaveOptions {
  std::string source;            // for messages
  std::string output;            // a path; its ending decides about the format
  std::uint64_t shard_size = 0;  // bytes; 0: one file
  // Lays a file out so that it shares most with the source. Else equal tensors give equal files.
  bool shares = true;
  // Once it is set, writing ends soon with an Error of EINTR. Null: never.
  const std::atomic<bool>* stop = nullptr;
};

// Whether a plan writes a directory: by the ending of `output`, and by `shard_size`. Throws Error
// kUsage for the ending of a format that is not written.
bool means_directory(const SaveOptions& options);

using Progress = std::function<void(std::uint64_t bytes)>;

// Writes a recipe to `fd`, and returns the bytes that the file shares with its sources. Messages
// name the source that failed, or `output`. Throws Error kUnreadable.
std::uint64_t write_bytes(const Checkpoint& checkpoint, const Content& content, int fd,
                          const std::string& output, const Progress& progress,
                          const std::atomic<bool>* stop = nullptr);

class Plan {
 public:
  // Throws Error kUsage for what the format cannot hold.
  Plan(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors, SaveOptions options);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool is_directory() const { return is_directory_; }
  std::uint64_t bytes() const { return bytes_; }  // of the files with tensors
  // The bytes that can be shared on the file system of the output: 0 where it cannot share.
  std::uint64_t shareable() const;

  // Writes the one file of a plan to `fd`. Returns the bytes that are shared. Throws Error
  // kUnreadable; messages name `output`.
  std::uint64_t write_file(int fd, const std::string& output, const Progress& progress) const;
  // Writes SaveOptions::output, whole or not at all, the index last. Returns and throws as
  // write_file() does, and kUsage when there is something of this name.
  std::uint64_t write_directory(AtSignal at_signal, const Progress& progress) const;

 private:
  std::vector<std::vector<std::uint32_t>> shards_of(std::span<const std::uint32_t> tensors) const;
  Content file_of(std::span<const std::uint32_t> tensors) const;
  Content safetensors_of(std::span<const std::uint32_t> tensors) const;
  Content gguf_of(std::span<const std::uint32_t> tensors) const;
  std::string index() const;
  [[noreturn]] void refuse_tensor(const Tensor& tensor, const std::string& rule) const;

  const Checkpoint& checkpoint_;
  const SaveOptions options_;
  SafetensorsFiles safetensors_;
  GgufFiles gguf_;
  bool is_directory_;
  std::vector<std::vector<std::uint32_t>> shards_;
  std::vector<Content> files_;  // by shard
  std::uint64_t bytes_ = 0;
};

// Writes all tensors to SaveOptions::output, whole or not at all, and returns the bytes that are
// shared. `sources` opened the checkpoint. Throws Error: kUsage also for a file that is there,
// without `replaces`, and for one that the checkpoint is read from.
std::uint64_t save(const Checkpoint& checkpoint, const Sources& sources, const SaveOptions& options,
                   bool replaces);

}  // namespace stfs
