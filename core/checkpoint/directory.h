// The checkpoints in a directory.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/index.h"
#include "core/source/sources.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

inline constexpr std::string_view kFileSuffix = ".safetensors";
inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

// The names in a directory that end in kIndexSuffix and in kFileSuffix, sorted.
struct Candidates {
  std::vector<std::string> indexes, files;

  // The usual name, "model" and the suffix, else the only name; nullopt when the choice is
  // ambiguous.
  std::optional<std::string> index() const;
  std::optional<std::string> file() const;
};
Candidates candidates_of(std::span<const std::string> names);
// nullopt for a file. Throws Error as Sources::names_in() does.
std::optional<Candidates> candidates_in(const std::string& path, Sources& sources);

// Throws Error: kAbsent, kUnreadable, or kInvalidIndex.
Index read_index(const std::string& path, Sources& sources);

// The names of the checkpoints in a directory: each index, and each file that is not a shard of one
// of them; nullopt for a file. Throws Error as Sources::names_in() does.
std::optional<std::vector<std::string>> checkpoints_in(const std::string& path, Sources& sources);

}  // namespace stfs
