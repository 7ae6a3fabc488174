// Recipes of new safetensors files, each with some tensors of a checkpoint. No tensor is copied.
// Quantised tensors of GGUF are converted to F32: safetensors has no type for their blocks.
//
// The files follow the rules of the reference reader, and equal selections give equal files:
// `__metadata__` first, sorted by key; then the tensors, those with larger elements first, so that
// each is aligned; elements of equal size in the order of `tensors`. Spaces pad the header so that
// the data begins at a multiple of 4096 bytes, the start of a page. Metadata of GGUF that is no
// text, number or bool, or that is not UTF-8, is left out.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stfs {

// The type of a tensor in these files.
DType type_in_safetensors(const Tensor& tensor);

// Whether these files can hold a tensor: its name is UTF-8 and not "__metadata__", and the product
// of its dimensions has 64 bits. That of a GGUF file may be another.
bool fits_safetensors(const Tensor& tensor);

// Makes the files of one checkpoint. They share the text of `__metadata__`, which may be long; the
// first make() writes it.
//
// Thread safety: const members may be called from any thread. Lifetime: the checkpoint outlives it,
// and it outlives the files.
class SafetensorsFiles {
 public:
  explicit SafetensorsFiles(const Checkpoint& checkpoint);

  // The recipe of a file with these tensors, by number; each fits_safetensors(). Returns nullopt
  // when the header would exceed the format's limit of 100,000,000 bytes, or the file 2^63.
  std::optional<Content> make(std::vector<std::uint32_t> tensors) const;
  // As make(), with the tensors in this order, and data that begin at `phase` modulo 4096 bytes.
  std::optional<Content> make_placed(std::vector<std::uint32_t> tensors, std::uint64_t phase) const;
  // The size of that file in bytes; makes no text.
  std::optional<std::uint64_t> size(std::vector<std::uint32_t> tensors) const;

 private:
  const std::string& metadata() const;
  std::optional<Content> make(std::vector<std::uint32_t> tensors, bool is_in_order,
                              std::uint64_t phase) const;

  const Checkpoint& checkpoint_;
  std::uint64_t metadata_size_ = 0;  // of the text, bytes
  bool has_metadata_ = false;
  mutable std::once_flag metadata_written_;
  mutable std::string metadata_;
};

}  // namespace stfs
