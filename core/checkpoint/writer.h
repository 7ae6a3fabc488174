// Recipes of new safetensors files, each with some tensors of a checkpoint. No tensor is copied.
//
// The files follow the rules of the reference reader, and equal selections give equal files:
// `__metadata__` first, sorted by key; then the tensors, those with larger elements first, so that
// each is aligned; elements of equal size in the order of `tensors`. Spaces pad the header so that
// the data begins at a multiple of 4096 bytes, the start of a page.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stfs {

// Makes the files of one checkpoint. They share the text of `__metadata__`, which may be long; the
// first make() writes it.
//
// Thread safety: const members may be called from any thread. Lifetime: the checkpoint outlives it,
// and it outlives the files.
class SafetensorsFiles {
 public:
  explicit SafetensorsFiles(const Checkpoint& checkpoint);

  // The recipe of a file with these tensors, by number. Returns nullopt when the header would
  // exceed the format's limit of 100,000,000 bytes.
  std::optional<Content> make(std::vector<std::uint32_t> tensors) const;
  // The size of that file in bytes; makes no text.
  std::optional<std::uint64_t> size(std::vector<std::uint32_t> tensors) const;

 private:
  const std::string& metadata() const;

  const Checkpoint& checkpoint_;
  std::uint64_t metadata_size_ = 0;  // of the text, bytes
  mutable std::once_flag metadata_written_;
  mutable std::string metadata_;
};

}  // namespace stfs
