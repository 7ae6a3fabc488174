// The checkpoints in a directory.
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
inline constexpr const char* kIndexName = "model.safetensors.index.json";  // the usual one
inline constexpr std::string_view kGgufSuffix = ".gguf";
inline constexpr std::string_view kTorchIndexSuffix = ".bin.index.json";

// Whether a name ends as that of an index of shards does.
bool is_index_name(std::string_view name);
// Whether a directory's file of this name may be a checkpoint: the ending says so, or PyTorch's
// usual names, "pytorch_model*.bin" and "diffusion_pytorch_model*.bin". GGUF files may have any
// name.
bool is_checkpoint_name(std::string_view name);
// Whether a file of this name may be a SOURCE: also with the endings of PyTorch and NumPy.
bool is_source_name(std::string_view name);

// Whether a name is that of a shard of two or more, "model-00001-of-00002.safetensors"; a variant
// may stand behind the numbers.
bool is_one_of_several(std::string_view name);

// The names in a directory that end in kIndexSuffix, in kFileSuffix and in kGgufSuffix, and those
// of PyTorch's files, sorted. Indexes of variants ("model.safetensors.index.fp16.json") stand among
// the indexes where there is no other, and no whole file. A split GGUF file stands there once, by
// its first part; by another where that is missing.
struct Candidates {
  std::vector<std::string> indexes, files, ggufs;
  std::vector<std::string> torch_indexes, torch_files;

  // The directory's meaning; nullopt when the choice is ambiguous. An index is preferred to a
  // safetensors file, that to a GGUF file, and that to PyTorch's index and file. The usual name,
  // "model" or "pytorch_model" and the suffix, is preferred to others, and else the only one is
  // taken; a GGUF file must be the only one. A shard of several is none without their index.
  std::optional<std::string> index() const;
  std::optional<std::string> file() const;  // without an index
};
Candidates candidates_of(std::span<const std::string> names);
// nullopt for a file. Throws Error as Sources::names_in() does.
std::optional<Candidates> candidates_in(const std::string& path, Sources& sources);

// Throws Error: kAbsent, kUnreadable, or kInvalidIndex.
Index read_index(const std::string& path, Sources& sources);

// The names of the checkpoints in a directory: each index, each file that is not a shard of one of
// them, and the first part of each split GGUF file; nullopt for a file. Throws Error as
// Sources::names_in() does.
std::optional<std::vector<std::string>> checkpoints_in(const std::string& path, Sources& sources);

}  // namespace stfs
