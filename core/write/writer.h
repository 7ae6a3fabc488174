// Recipes of new safetensors files with some tensors of a checkpoint. No tensor is copied.
// Quantised tensors of GGUF are converted to F32, because safetensors has no type for their blocks.
//
// The files follow the rules of the reference reader, and equal selections result in equal files.
// `__metadata__` is first, sorted by key. The tensors follow: tensors with larger elements first,
// so that each tensor is aligned; tensors with elements of equal size in the order of `tensors`.
// Spaces pad the header so that the data begins at a multiple of 4096 bytes, the start of a page.
// GGUF metadata is left out if it is not a string, number or boolean, or not UTF-8.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stfs {

// Returns the type of a tensor in these files.
DType type_in_safetensors(const Tensor& tensor);

// Returns true if these files can contain a tensor: its name is UTF-8 and not "__metadata__", and
// the product of its dimensions fits into 64 bits. A tensor of a GGUF file may violate this.
bool fits_safetensors(const Tensor& tensor);

// Makes the files of one checkpoint. All files share the text of `__metadata__`, which may be long
// and is written by the first make().
//
// Thread safety: const members may be called from any thread. Lifetime: the checkpoint must outlive
// the object, and the object must outlive the files.
class SafetensorsFiles {
 public:
  explicit SafetensorsFiles(const Checkpoint& checkpoint);

  // Returns the recipe of a file with the tensors of these numbers, which must all satisfy
  // fits_safetensors(). Returns nullopt if the header would exceed the format's limit of
  // 100,000,000 bytes, or the file 2^63 bytes.
  std::optional<Content> make(std::vector<std::uint32_t> tensors) const;
  // Like make(), but keeps the order of `tensors`, and the data begins at `phase` modulo 4096.
  std::optional<Content> make_placed(std::vector<std::uint32_t> tensors, std::uint64_t phase) const;
  // Returns the size in bytes of the file of make(), without making any text.
  std::optional<std::uint64_t> size(std::vector<std::uint32_t> tensors) const;

 private:
  const std::string& metadata() const;
  std::optional<Content> make(std::vector<std::uint32_t> tensors, bool is_in_order,
                              std::uint64_t phase) const;

  const Checkpoint& checkpoint_;
  std::uint64_t metadata_size_ = 0;  // the bytes of the text
  bool has_metadata_ = false;
  mutable std::once_flag metadata_written_;
  mutable std::string metadata_;
};

}  // namespace stfs
