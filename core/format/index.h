// The index of a sharded checkpoint, `*.safetensors.index.json`:
//
//   {"metadata": {"total_size": 123}, "weight_map": {"tensor": "model-00001-of-00002.safetensors"}}
//
// (Hugging Face, "Sharded checkpoints"). Other keys are ignored.
//
// Thread safety: parse_index() and const members may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

struct Index {
  struct Entry {
    std::uint64_t name_begin;   // index in `names`
    std::uint32_t name_length;  // bytes
    std::uint32_t shard;        // index in `shards`
  };

  std::vector<Entry> entries;               // sorted by name; names are unique
  std::string names;                        // arena of the entries' names
  std::vector<std::string> shards;          // paths relative to the index's directory, sorted
  std::optional<std::uint64_t> total_size;  // bytes

  std::string_view name(const Entry& entry) const {
    return std::string_view(names).substr(entry.name_begin, entry.name_length);
  }
};

// Parses the JSON of an index. `place` begins the messages of errors. Throws Error kInvalidIndex.
// Refuses also a shard with an absolute path or with a `..` in its path.
Index parse_index(std::string_view json, const std::string& place);

}  // namespace stfs
