// New safetensors files as recipes: some tensors of a checkpoint, in one file, nothing copied.
//
// The file is valid to the reference's rules and is the same whenever it is made of the same
// tensors:
// `__metadata__` first, sorted by key, then the tensors by the size of their elements, the largest
// first, so that each is aligned; among equals as they stood. The header is padded with spaces so
// that the data begins at a multiple of 4096 bytes, and a mapping of it at a page.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stfs {

// The files that can be made of one checkpoint, which outlives it. All of them hold the same text
// of the metadata, which may be long: it is made once, when the first file is.
//
// Thread safety: all members. It outlives the files.
class SafetensorsFiles {
 public:
  explicit SafetensorsFiles(const Checkpoint& checkpoint);

  // The file with these tensors, by number. Nothing when its header would pass the format's limit
  // of 100,000,000 bytes.
  std::optional<Content> make(std::vector<std::uint32_t> tensors) const;
  // Its size in bytes, without making it.
  std::optional<std::uint64_t> size(std::vector<std::uint32_t> tensors) const;

 private:
  const std::string& metadata() const;

  const Checkpoint& checkpoint_;
  std::uint64_t metadata_size_ = 0;  // of its text
  mutable std::once_flag metadata_made_;
  mutable std::string metadata_;
};

}  // namespace stfs
