// Writes new files of a checkpoint: one safetensors or GGUF file, or a directory with shards and
// the files that loaders need.
//
// A Plan describes the output; write_file() and write_directory() write it. The output shares bytes
// with local source files if the file system supports it (core/recipe/write_content.h).
//
// Thread safety: one thread at a time may use a Plan. Lifetime: the checkpoint must outlive it.
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
  std::string output;            // a path; its ending decides the format
  std::uint64_t shard_size = 0;  // bytes; 0: one file
  // Places tensors so that the file shares the most bytes with its source. If false, equal tensors
  // result in equal files.
  bool shares = true;
  // Once it is set, writing soon ends with an Error of EINTR. Null: writing cannot be stopped.
  const std::atomic<bool>* stop = nullptr;
};

// Returns true if a plan writes a directory, which depends on the ending of `output` and on
// `shard_size`. Throws Error kUsage for the ending of a format that stfs cannot write.
bool means_directory(const SaveOptions& options);

using Progress = std::function<void(std::uint64_t bytes)>;

// Writes a recipe to `fd`. Returns the number of bytes that the file shares with its sources.
// Throws Error kUnreadable; messages name the source that failed, or `output`.
std::uint64_t write_bytes(const Checkpoint& checkpoint, const Content& content, int fd,
                          const std::string& output, const Progress& progress,
                          const std::atomic<bool>* stop = nullptr);

class Plan {
 public:
  // Throws Error kUsage for tensors that the format cannot contain.
  Plan(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors, SaveOptions options);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool is_directory() const { return is_directory_; }
  std::uint64_t bytes() const { return bytes_; }  // the size of the files with tensors
  // Returns the bytes that can be shared on the file system of the output, or 0 if it cannot share.
  std::uint64_t shareable() const;

  // Writes the only file of a plan to `fd`. Returns the number of shared bytes. Throws Error
  // kUnreadable; messages name `output`.
  std::uint64_t write_file(int fd, const std::string& output, const Progress& progress) const;
  // Writes the directory SaveOptions::output, with the index last. It appears complete or not at
  // all. Returns and throws the same as write_file(), and throws Error kUsage if the name exists.
  std::uint64_t write_directory(SignalCleanup at_signal, const Progress& progress) const;

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

// Writes all tensors to SaveOptions::output, which appears complete or not at all. Returns the
// number of shared bytes. `sources` must have opened the checkpoint. Throws Error: kUsage also if
// the file exists and `replaces` is false, and if the checkpoint is read from this file.
std::uint64_t save(const Checkpoint& checkpoint, const Sources& sources, const SaveOptions& options,
                   bool replaces);

}  // namespace stfs
