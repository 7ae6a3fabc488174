// Recipes of new GGUF files, each with some tensors of a checkpoint whose first source is a GGUF
// file. No tensor is copied, and no metadata: a tokenizer may have a hundred megabytes. Layers may
// have changed tensors, or added some of other files.
//
//   literal    "GGUF", version 3, the numbers of tensors and keys
//   extents    the keys and values, as they stand in the sources and in their order
//   table      name, dimensions, type and offset of each tensor
//   zeros      to a multiple of the alignment, where there are tensors
//   contents   of the tensors in the order of `tensors`, each with zeros to a multiple of the
//   alignment
//
// The keys are those of all sources, a key that several have once. Left out are keys to which
// sources give different values (Checkpoint::metadata_conflicts), those that number the parts of a
// split file, and comfy.gguf.orig_shape.NAME in a source other than the one that gives the tensor
// NAME its shape: that which holds it, or the first part of that split file. general.alignment is
// the largest of those that sources name, and 32 without one.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs {

// Whether a part is a GGUF file.
bool is_gguf_part(const Part& part);

// Makes the files of one checkpoint. They share the list of keys; the first size() or make() finds
// it.
//
// Thread safety: const members may be called from any thread. Lifetime: the checkpoint outlives it
// and the files.
class GgufFiles {
 public:
  explicit GgufFiles(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Whether a file can hold a tensor: as a GGUF file has it, or with a type, a name and a shape
  // that one may have. Not what dequantising computes: the metadata of the file are of quantised
  // tensors.
  bool can_hold(std::uint32_t number) const;

  bool is_dequantized(std::uint32_t number) const;

  // The first of these tensors whose values readers of their file would compute otherwise: the
  // scale of a weight is not in the file under its name, or would scale a second time.
  std::optional<std::uint32_t> with_other_scale(std::span<const std::uint32_t> tensors) const;

  // The recipe of a file with these tensors, by number: 0, ENOTSUP when it cannot hold one of them,
  // or EFBIG when it would have more than 2^63 bytes.
  int make(std::span<const std::uint32_t> tensors, Content& content) const;
  // The size of that file in bytes, with the same errors; makes no text.
  int size(std::span<const std::uint32_t> tensors, std::uint64_t& bytes) const;

 private:
  struct Keys {
    std::vector<Extent> records;  // neighbours are one
    std::string added;            // keys that edits have set, as the format encodes them
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t alignment = 0;
  };
  struct Layout;

  const Keys& keys() const;
  Keys find_keys() const;
  int lay_out(std::span<const std::uint32_t> tensors, Layout& layout) const;

  const Checkpoint& checkpoint_;
  mutable std::once_flag keys_found_;
  mutable Keys keys_;
};

}  // namespace stfs
