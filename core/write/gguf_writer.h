// Recipes of new GGUF files with some tensors of a checkpoint. Its first source must be a GGUF
// file. Neither tensors nor metadata are copied, because a tokenizer may have a hundred megabytes.
// Layers may have changed tensors, or added tensors of other files.
//
//   literal    "GGUF", version 3, the numbers of tensors and keys
//   extents    the keys and values, unchanged, in the order of the sources and within each source
//   text       the keys that edits have set
//   table      name, dimensions, type and offset of each tensor
//   zeros      up to a multiple of the alignment, if there are tensors
//   contents   the tensors in the order of `tensors`, each followed by zeros up to a multiple of
//              the alignment
//
// The file has the keys of all sources; a key that several sources have appears once. Three kinds
// of keys are left out: keys to which sources give different values
// (Checkpoint::metadata_conflicts); keys that number the parts of a split file; and
// comfy.gguf.orig_shape.NAME, except in the source that determines the shape of tensor NAME, which
// is the file that contains the tensor or the first part of that split file. general.alignment is
// the largest value that a source has, or 32 if no source has one.
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

// Returns true if a part is a GGUF file.
bool is_gguf_part(const Part& part);

// Makes the files of one checkpoint. All files share the list of keys, which the first call of
// size() or make() determines.
//
// Thread safety: const members may be called from any thread. Lifetime: the checkpoint must outlive
// the object, and the object must outlive the files.
class GgufFiles {
 public:
  explicit GgufFiles(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Returns true if a file can contain a tensor: a tensor as a GGUF file has it, or a tensor with a
  // type, name and shape that GGUF allows. Returns false for dequantised values, because the
  // metadata of the file describes quantised tensors.
  bool can_hold(std::uint32_t number) const;

  bool is_dequantized(std::uint32_t number) const;

  // Returns the first of these tensors that readers of their file would decode to other values,
  // because the scale of a weight is not in the file under its name, or because a scale would be
  // applied a second time.
  std::optional<std::uint32_t> with_other_scale(std::span<const std::uint32_t> tensors) const;

  // Makes the recipe of a file with the tensors of these numbers. Returns 0, ENOTSUP if the file
  // cannot contain one of them, or EFBIG if it would have more than 2^63 bytes.
  int make(std::span<const std::uint32_t> tensors, Content& content) const;
  // Computes the size of that file in bytes without making any text. Returns the same errors.
  int size(std::span<const std::uint32_t> tensors, std::uint64_t& bytes) const;

 private:
  struct Keys {
    std::vector<Extent> records;  // adjacent records are joined
    std::string added;            // the encoded keys that edits have set
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
