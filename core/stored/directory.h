// Finds the checkpoints in a directory by the names of its files.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/index.h"
#include "core/remote/sources.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

inline constexpr std::string_view kFileSuffix = ".safetensors";
inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
inline constexpr const char* kIndexName = "model.safetensors.index.json";  // the usual name
inline constexpr std::string_view kGgufSuffix = ".gguf";
inline constexpr std::string_view kTorchIndexSuffix = ".bin.index.json";

// Returns true if a name has the ending of an index of shards.
bool is_index_name(std::string_view name);
// Returns true if a file with this name in a directory may be a checkpoint: if it has an ending of
// safetensors or GGUF, or a usual name of PyTorch, "pytorch_model*.bin" or
// "diffusion_pytorch_model*.bin", or is an index of such files.
bool is_checkpoint_name(std::string_view name);
// Returns true if a file with this name may be a SOURCE: for the names above and for all endings of
// PyTorch and NumPy.
bool is_source_name(std::string_view name);

// Returns true for a name of one of two or more shards, such as "model-00001-of-00002.safetensors".
// A variant may follow the numbers.
bool is_one_of_several(std::string_view name);

// The names in a directory that may be checkpoints, sorted: names that end in kIndexSuffix,
// kFileSuffix or kGgufSuffix, and the usual names of PyTorch. If there is neither an index nor a
// whole file, indexes of variants ("model.safetensors.index.fp16.json") count as indexes. A split
// GGUF file is listed once, by its first part, or by another part if that is missing.
struct Candidates {
  std::vector<std::string> indexes, files, ggufs;
  std::vector<std::string> torch_indexes, torch_files;

  // At most one of these returns a name, which is the checkpoint to load for the directory. Both
  // return nullopt if there is no checkpoint or the choice is ambiguous. Only the first of these
  // kinds that the directory has is considered: an index, a safetensors file, a GGUF file, an index
  // of PyTorch, a file of PyTorch. If it has several of this kind, the usual name is chosen:
  // "model", "pytorch_model" or "diffusion_pytorch_model" with the suffix. Any other name must be
  // the only one; this applies to every GGUF file. A safetensors or PyTorch file that is one of
  // several shards is never chosen.
  std::optional<std::string> index() const;
  std::optional<std::string> file() const;
};
Candidates candidates_of(std::span<const std::string> names);
// Returns nullopt if `path` is a file. Throws Error like Sources::names_in().
std::optional<Candidates> candidates_in(const std::string& path, Sources& sources);

// Reads an index of shards, which may be remote. Throws Error: kAbsent, kUnreadable or
// kInvalidIndex.
Index read_index(const std::string& path, Sources& sources);

// Returns the names of the checkpoints in a directory: each index, each file that is not a shard of
// one of them, and the first part of each split GGUF file. Returns nullopt if `path` is a file.
// Throws Error like Sources::names_in().
std::optional<std::vector<std::string>> checkpoints_in(const std::string& path, Sources& sources);

}  // namespace stfs
