// The index of a sharded checkpoint, `*.safetensors.index.json`:
//
//   {"metadata": {"total_size": 123}, "weight_map": {"tensor": "model-00001-of-00002.safetensors"}}
//
// (Hugging Face, "Sharded checkpoints"). Other keys are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct Index {
  struct Entry {
    std::uint64_t name_begin;
    std::uint32_t name_length;
    std::uint32_t shard;  // number in `shards`
  };

  std::vector<Entry> entries;               // sorted by name, all different
  std::string names;                        // arena
  std::vector<std::string> shards;          // file names relative to the index's directory, sorted
  std::optional<std::uint64_t> total_size;  // bytes

  std::string_view name(const Entry& entry) const {
    return std::string_view(names).substr(entry.name_begin, entry.name_length);
  }
};

// Throws Error kInvalidIndex, also for a shard that is an absolute path or has a `..` in it.
Index parse_index(std::string_view json, const std::string& place);

}  // namespace stfs
